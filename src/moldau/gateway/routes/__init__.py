"""Routes of the REST gateway."""
