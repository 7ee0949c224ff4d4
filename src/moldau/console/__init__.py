"""The web console: a single-page application and its backend, an ordinary client of any Kafka cluster.

`app.py` builds the ASGI application: `guard.py` checks every request, `routes/` has the API by page, `assets/` the
pages. A `Session` is one user with one client connection; state that outlives the process is kept in the cluster only.
"""
