"""Nodes and clusters on virtual time, with faults drawn from a seed."""
