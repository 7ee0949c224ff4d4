"""Simulated clusters: workloads, faults and the probes that check guarantees."""
