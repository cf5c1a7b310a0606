"""What lies between two scrapes: what Prometheus said against every sample that was recorded."""
