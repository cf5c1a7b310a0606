"""Recomputes from raw counters what Prometheus' rules recorded and alerted on, and says where they differ."""
