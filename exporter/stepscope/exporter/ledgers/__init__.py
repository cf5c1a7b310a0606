"""The ledger directory as the exporter reads it, and the totals of the runs in it."""
