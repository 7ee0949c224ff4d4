"""Basic types: ids, offsets, error codes, settings, and ports."""
