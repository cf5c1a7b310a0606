"""`stepscope alertmanager`: Alertmanager's configuration and templates."""
