"""`trainwatch hooks`: the file that loads Trainwatch's hooks at the start of a Python."""
