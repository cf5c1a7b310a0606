"""`stepscope hooks`: the file that loads Stepscope's hooks at the start of a Python."""
