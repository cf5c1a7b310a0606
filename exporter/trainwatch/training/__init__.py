"""What runs in the training process (standard library only), and the reader of what it writes."""
