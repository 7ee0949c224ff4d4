"""The REST gateway: `/v1` of `moldau serve`, which produces and reads records and administers topics over HTTP."""
