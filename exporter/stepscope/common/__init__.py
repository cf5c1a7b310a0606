"""Small modules that every package may use."""

PUBLIC_DOCS = "https://github.com/stepscope/stepscope/blob/main/docs"
