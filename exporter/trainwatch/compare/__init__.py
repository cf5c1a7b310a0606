"""Compares two runs: what became faster or cheaper, where the difference lies, and whether there is one."""
