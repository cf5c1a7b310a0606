"""Replays a recording through the exporter's own counters, to see what any scrape would have seen."""
