"""The report: one HTML file to share, and one JSON file per rule."""
