"""Runs that Prometheus has scraped: `prometheus+http://host:9090?run=NAME`."""
