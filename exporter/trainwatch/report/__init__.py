"""The report: one HTML file that people pass around, and one JSON file a rule."""

from trainwatch.report.html import render_html

__all__ = ["render_html"]
