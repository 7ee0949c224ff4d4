"""The connection core for peers, the command line, benchmarks and tests: `async_client.py`, `blocking_client.py`.

`connection.py` is the pure heart; `cluster.py` finds the right broker and tries again.
"""
