"""ControllerRegistration: a controller registers its listeners."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.image import ControllerImage, ListenerImage, VersionRange
from moldau.model.ids import Address
from moldau.wire.messages import ControllerRegistrationRequest, ControllerRegistrationResponse


async def handle(request: ControllerRegistrationRequest, context: QuorumContext) -> ControllerRegistrationResponse:
    """On the active controller: respond once the registration is committed."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    controller = ControllerImage(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        listeners=tuple(
            ListenerImage(each.name, Address(each.host, each.port), each.security_protocol)
            for each in request.listeners
        ),
        features={
            each.name: VersionRange(each.min_supported_version, each.max_supported_version) for each in request.features
        },
    )
    await context.broker.metadata.write(lambda machine: machine.decide_register_controller(controller))
    return ControllerRegistrationResponse()
