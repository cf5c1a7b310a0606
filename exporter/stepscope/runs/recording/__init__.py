"""Our own recordings: writing them during a run, and reading them."""
