"""The API of the console, one module per page."""
