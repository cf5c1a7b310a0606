"""Analyses of a run (smdebug.profiler.analysis)."""
