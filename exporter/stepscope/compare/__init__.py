"""Compares two runs: what became faster or cheaper, why, and whether the difference is significant."""
