"""Runs the heuristics over a run and puts together what the terminal, the report and the JSON files show."""
