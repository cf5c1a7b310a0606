"""Plays a recording back through the exporter's own counters, to see what a scrape at any moment had seen."""
