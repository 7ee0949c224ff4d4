"""Timeouts, limits and security of a client."""

from dataclasses import dataclass

from moldau.client.security import PLAINTEXT, ClientSecurity
from moldau.model.units import MINUTE_MS, SECOND_MS, MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """Defaults as in Kafka's clients; the comments have Kafka's names."""

    client_id: str = "moldau"
    connect_timeout_ms: int = 10 * SECOND_MS  # socket.connection.setup.timeout.ms
    request_timeout_ms: int = 30 * SECOND_MS  # request.timeout.ms
    total_timeout_ms: int = MINUTE_MS  # default.api.timeout.ms: all attempts of one call together
    requests_in_flight_max: int = 5  # max.in.flight.requests.per.connection
    requests_waiting_max: int = 10_000  # per connection, beyond those in flight
    retry_backoff_ms: int = 100  # retry.backoff.ms
    retry_backoff_max_ms: int = SECOND_MS  # retry.backoff.max.ms
    metadata_max_age_ms: int = 5 * MINUTE_MS  # metadata.max.age.ms
    frame_bytes_max: int = 100 * MiB  # a larger response closes the connection
    security: ClientSecurity = PLAINTEXT  # security.protocol and related settings
    allow_auto_create_topics: bool = False  # allow.auto.create.topics, when a topic is looked up
