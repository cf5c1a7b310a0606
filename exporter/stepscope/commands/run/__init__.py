"""`stepscope run`: observes one training command from its start to the report."""
