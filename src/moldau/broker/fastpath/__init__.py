"""Fast paths: shortened handling of requests that repeat an earlier request of their connection.

Most requests of a busy connection repeat an earlier one: a producer sends the same Produce request with another batch,
a group member sends the same Heartbeat, a follower sends the next Fetch of its session. Decoding such a request,
starting a handler and encoding the response cost several times as much as the work itself. A fast path caches the parts
that do not change and does the work alone.

    frame ──> fast path of its API key ── try_handle() is True ──────────────────────> response queue
                     │ False: nothing has happened
                     └──> decode ──> handler ──> encode ─────────────────────────────> response queue
                                        └──> learn(): the next request like it may take the fast path

Invariants:

- *Same result.* A fast path gives the response, byte for byte, and the effects of the handler. Both call the same
  functions to accept a batch, to read for a follower and to decide on a heartbeat; property tests compare the two in
  each version. Whether to use the fast path is a matter of speed alone.
- *All or nothing.* `try_handle` handles the whole request or none of it. When it returns False there is no effect, and
  the connection passes the same frame to the handler.
- *Fallback.* Every byte of the frame that is not the correlation id or the batch is compared with the cached request,
  or parsed. Anything else goes to the handler: another version, unknown tagged fields, an error, a changed topic
  setting, a partition that is no longer led here.
- *Invalidation.* Cached requests refer to live objects (a partition, a session, a coordinator shard) and compare on
  each hit what may have changed. Nothing updates them from outside; the connection drops them when it closes.
- *Authorization.* A request is cached only if the authorizer allows it to the connection's principal, which does not
  change. Each hit compares the authorizer's `generation` with that of the cached decision, one integer; after any
  change of the ACLs the handler takes the next request, and rejects it or lets it be cached again.
- *Quotas.* A fast path never throttles. The connection uses it while the quota has room and charges the request; else
  the handler takes the request and throttles the client. TLS ends below the frames and concerns neither.
- *Order.* Requests of a connection start in the order they came, and their responses keep it. A fast path that holds
  back responses until the turn ends (Produce does, to send them as one buffer) sends them in `flush`, which the
  connection calls before it handles a request in any other way, and when the turn ends.
- *Write coalescer.* Produce opens the coalescer while more frames of the turn follow, so that their batches are written
  with one call. The connection closes it before any other handler runs and ends it before `flush` at the end of the
  turn: no acknowledgement leaves before its batch is written. Other fast paths fall back while it holds batches.

A fast path belongs to one connection. The handler table (`handlers.table`) names its factory beside the API; the
connection calls the factory when the API is first used. `requests.fast_path` is the interface between them. Nothing in
`network` depends on a particular API.
"""
