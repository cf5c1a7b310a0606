"""Shared code of the training examples: a small image data set, its loader, a model, and ways to be slow."""
