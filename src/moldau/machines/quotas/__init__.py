"""Rates that quotas limit, as pure state: time is an argument."""
