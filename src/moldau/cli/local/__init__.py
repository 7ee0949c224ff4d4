"""A cluster of processes on this machine: `layout.py` defines nodes and ports, `supervisor.py` runs them."""
