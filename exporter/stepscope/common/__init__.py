"""Small modules that every package may use."""
