"""A Prometheus of its own for a recording: what it would have scraped, and what its rules say of it."""
