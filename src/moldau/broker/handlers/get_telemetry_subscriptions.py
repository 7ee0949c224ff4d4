"""GetTelemetrySubscriptions: which metrics a client is to push, how often, and how (KIP-714)."""

from collections.abc import Mapping

from moldau.broker.handlers.contexts import TelemetryContext
from moldau.broker.quotas.client_quotas import USER_PREFIX
from moldau.broker.telemetry.client_instances import COMPRESSION_TYPES, RESERVED_IDS, ClientInstance, TelemetryClient
from moldau.model.errors import InvalidRequest
from moldau.storage.log_dir import encode_id
from moldau.wire.messages import GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse


async def handle(
    request: GetTelemetrySubscriptionsRequest, context: TelemetryContext
) -> GetTelemetrySubscriptionsResponse:
    """Describe the subscription; a client without an id gets one."""
    telemetry = context.broker.client_telemetry
    id_bytes = request.client_instance_id
    if id_bytes == RESERVED_IDS[0]:
        id_bytes = telemetry.instances.new_id()
    instance = find_instance(id_bytes, context)
    telemetry.get(instance)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=id_bytes,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[int(each) for each in COMPRESSION_TYPES],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=telemetry.payload_bytes_max,
        delta_temporality=True,
        requested_metrics=list(instance.metrics),
    )


def find_instance(id_bytes: bytes, context: TelemetryContext) -> ClientInstance:
    """The instance of the client that sent the request."""
    if id_bytes in RESERVED_IDS:
        raise InvalidRequest("The id of the client instance is reserved: use the one that the broker has returned.")

    def attributes() -> Mapping[str, str]:
        connection = context.connection
        found = {
            "client_instance_id": encode_id(id_bytes),
            "client_id": context.client_id,
            "client_source_address": context.peer,
        }
        if connection is not None:
            name, version = connection.client_software
            found |= {
                "client_software_name": name,
                "client_software_version": version,
                "client_source_port": str(connection.peer_port),
            }
        return {key: value for key, value in found.items() if value}

    client = TelemetryClient(context.principal.removeprefix(USER_PREFIX), context.client_id or "")
    return context.broker.client_telemetry.find(id_bytes, client, attributes)
