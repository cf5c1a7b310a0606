"""Builds Grafana's dashboards: one file per dashboard, rendered to grafana/dashboards/*.json."""
