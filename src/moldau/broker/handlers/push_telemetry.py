"""PushTelemetry: a client pushes the metrics of its subscription (KIP-714)."""

from moldau.broker.handlers.contexts import TelemetryContext
from moldau.broker.handlers.get_telemetry_subscriptions import find_instance
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.broker.telemetry.client_instances import Push
from moldau.wire.messages import PushTelemetryRequest, PushTelemetryResponse


async def handle(request: PushTelemetryRequest, context: TelemetryContext) -> PushTelemetryResponse:
    """Record the metrics for the metrics page."""
    instance = find_instance(request.client_instance_id, context)
    payload = memoryview(request.metrics)
    push = Push(request.subscription_id, request.compression_type, request.terminating, len(payload))
    await context.broker.client_telemetry.push(instance, push, payload, TimeSlice(context))
    return PushTelemetryResponse()
