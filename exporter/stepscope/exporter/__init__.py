"""`stepscope exporter`: the node exporter, assembled from its parts."""
