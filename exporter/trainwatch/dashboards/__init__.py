"""Grafana's dashboards, built from short Python: one file a dashboard, committed as
grafana/dashboards/*.json."""
