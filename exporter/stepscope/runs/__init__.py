"""Runs as they were recorded: the model, and a reader for each format."""
