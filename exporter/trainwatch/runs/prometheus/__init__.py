"""Runs that Prometheus has scraped: `prometheus+http://host:9090?run=NAME`."""

from trainwatch.runs.prometheus.source import PrometheusRun

__all__ = ["PrometheusRun"]
