"""Data frames, timelines and statistics of a run (smdebug.profiler.analysis.utils)."""
