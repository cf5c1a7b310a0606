"""Reads the dumps of PyTorch's flight recorder: the last collectives of every rank."""
