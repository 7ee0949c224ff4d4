"""Pure state machines: they decide, others act."""
