"""The words everything else is written in: ids, offsets, error codes, settings, and the ports."""
