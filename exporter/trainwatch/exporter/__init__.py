"""`trainwatch exporter`: the node exporter, put together from its parts."""
