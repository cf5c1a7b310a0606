"""One file a framework: each imports its framework lazily and uses the same functions as a user would."""
