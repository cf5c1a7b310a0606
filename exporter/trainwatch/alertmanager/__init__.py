"""`trainwatch alertmanager`: Alertmanager's configuration and templates."""
