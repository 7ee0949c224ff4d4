"""Broker, topic and group configs: their declarations, defaults, effective values and validation."""
