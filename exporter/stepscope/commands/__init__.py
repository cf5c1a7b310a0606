"""One file per command of `stepscope`; `cli` has the list of them."""
