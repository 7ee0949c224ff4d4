"""The web console: pages and their API, for a browser."""
