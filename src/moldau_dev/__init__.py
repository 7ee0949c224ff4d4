"""Moldau's own development tools: simulator, history checker, chaos runner, benchmarks. Not in the wheel.

- `moldau_dev.simulation` runs nodes and whole clusters on virtual time under faults (`make sim`).
- `moldau_dev.history` records what clients observed and checks it for anomalies.
- `moldau_dev.chaos` runs a cluster of real processes under faults (`make chaos`).
- `moldau_dev.bench` measures everything that has a target (`make bench`).
"""
