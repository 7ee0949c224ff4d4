"""Drivers: each runs a pure machine on a log, with real or simulated ports."""
