"""Chaos tests on real processes: faults in a running cluster, recorded clients, an audit of the logs on disk.

`python -m moldau_dev.chaos.run --minutes 5`
"""
