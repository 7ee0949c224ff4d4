"""A cluster of processes on this machine: `layout.py` says who is where, `supervisor.py` keeps them running."""
