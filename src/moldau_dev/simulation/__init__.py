"""Nodes and clusters on virtual time, under faults drawn from a seed."""
