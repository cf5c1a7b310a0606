"""Compares what Prometheus stored with every recorded sample: what may scrapes have hidden?"""
