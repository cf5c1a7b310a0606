"""Runs that Prometheus has scraped: `prometheus+http://host:9090?run=NAME`."""

from trainwatch.recording.prometheus.source import PrometheusRun

__all__ = ["PrometheusRun"]
