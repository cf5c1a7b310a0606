"""`stepscope stacks`: where each rank of a run on this node is now, and its Python stack."""
