"""Our own recordings: writing them while a run goes on, and reading them."""
