"""Pytest fixtures that come with the package. Importing this costs nothing: a broker is only loaded when asked for."""
