"""The report: one HTML file that people pass around, and one JSON file a rule."""
