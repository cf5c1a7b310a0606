"""What the training examples share: a small image data set, its loader, a model, and ways to be slow."""
