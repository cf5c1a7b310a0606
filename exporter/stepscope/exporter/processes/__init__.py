"""The processes of the node, from /proc and its cgroups."""
