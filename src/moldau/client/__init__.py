"""The client of peers, the command line, benchmarks and tests: `async_client.py`, `blocking_client.py`.

`connection.py` is the sans-IO protocol; `cluster.py` routes and retries requests.
"""
