"""Rule files, the cross-check of their alerts, and a collector for prometheus_client."""
