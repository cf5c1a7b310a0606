"""One file a dashboard, each with a function `dashboard`. Being in this folder is being rendered."""
