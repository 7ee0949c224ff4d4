"""Controller registration: endpoints and supported features."""

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.image import ControllerImage, MetadataImage
from moldau.machines.metadata.records import Record
from moldau.model.errors import InvalidRequest, UnsupportedVersion
from moldau.wire import messages


def decide_register_controller(image: MetadataImage, controller: ControllerImage) -> Decision[Record, None]:
    """Register a controller; an unchanged registration writes nothing."""
    if controller.controller_id < 0:
        raise InvalidRequest("A controller id cannot be negative.")
    for name, supported in controller.features.items():
        level = image.features.get(name)
        if level is not None and level not in supported:
            raise UnsupportedVersion(
                f"Unable to register because the controller does not support finalized version {level} of {name}. The "
                f"controller wants a version between {supported.lowest} and {supported.highest}, inclusive."
            )
    if image.controllers.get(controller.controller_id) == controller:
        return respond(None)
    return respond(None, [record_of_controller(controller)])


def record_of_controller(controller: ControllerImage) -> messages.RegisterControllerRecord:
    """Return the registration record of this image."""
    return messages.RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        end_points=[
            messages.RegisterControllerRecord.ControllerEndpoint(
                name=each.name,
                host=each.address.host,
                port=each.address.port,
                security_protocol=each.security_protocol,
            )
            for each in controller.listeners
        ],
        features=[
            messages.RegisterControllerRecord.ControllerFeature(
                name=name, min_supported_version=supported.lowest, max_supported_version=supported.highest
            )
            for name, supported in sorted(controller.features.items())
        ],
    )
