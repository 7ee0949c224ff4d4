"""Client quotas: limits of bytes, request time, metadata changes and new connections, and how they are enforced.

    image.client_quotas ──> QuotaIndex ──┐ limit and entity of a client, by Kafka's precedence
                                         ▼
    connection ──> ConnectionQuota ──> EntityQuota (rate, limit)  <── other connections of the same entity
                        │
                        └─ RequestUsage of one request: charges it, sets `throttle_time_ms`, and mutes the connection

Without quotas in the image, `ServedConnection.quota` and `RequestContext.usage` are None, and that is all a request
sees. With quotas, a request is charged when its response is ready. A client over its quota gets the response at once,
and its connection is not read for the `throttle_time_ms` in it. A fast path handles requests while `ConnectionQuota`
has room, and leaves those that must be throttled to the handler.
"""
