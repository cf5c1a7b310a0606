"""Code that runs in the training process (standard library only), and the reader of its ledgers."""
