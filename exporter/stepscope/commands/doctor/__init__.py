"""`stepscope doctor`: what is measured here, what is not, why, and the fix."""
