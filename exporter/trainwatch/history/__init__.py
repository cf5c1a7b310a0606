"""`trainwatch list` and `trainwatch open`: the runs of a folder, and their reports."""
