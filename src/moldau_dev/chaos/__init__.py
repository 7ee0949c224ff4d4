"""Trouble for real processes: faults on a running cluster, clients that are recorded, an audit of what is left on disk.

`python -m moldau_dev.chaos.run --minutes 5`
"""
