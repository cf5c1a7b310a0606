"""`stepscope list`, `open` and `score`: the runs of a folder, their reports and predictions."""
