"""Applies the rules to a run, and collects what the terminal, the report and the JSON files show."""
