"""Prometheus metrics: declared once, collected per scrape, formatted in slices."""
