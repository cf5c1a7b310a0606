"""HTTP for every command that serves: the server, TLS and passwords, the log."""
