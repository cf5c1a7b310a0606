"""Prometheus rule files: renders the rules as PromQL, and checks the rendered files."""
