"""Schedules on this broker: the coordinator of some of them, and the publication of their ticks."""
