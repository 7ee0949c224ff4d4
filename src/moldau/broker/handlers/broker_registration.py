"""BrokerRegistration: a broker joins the cluster, or re-registers after a restart."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.brokers import Registration
from moldau.machines.metadata.image import ListenerImage, VersionRange
from moldau.model.errors import InconsistentClusterId, InvalidRequest, KafkaError
from moldau.model.ids import NO_EPOCH, Address
from moldau.wire.messages import BrokerRegistrationRequest, BrokerRegistrationResponse


async def handle(request: BrokerRegistrationRequest, context: QuorumContext) -> BrokerRegistrationResponse:
    """On the active controller: respond with the broker epoch once the registration is committed."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    metadata = context.broker.metadata
    if request.cluster_id != context.broker.cluster_id:
        raise InconsistentClusterId(
            f"Broker {request.broker_id} belongs to cluster {request.cluster_id}, but this cluster is "
            f"{context.broker.cluster_id}."
        )
    if request.is_migrating_zk_broker:
        raise InvalidRequest("Migration from ZooKeeper is not supported.")
    registration = _registration(request)
    epoch = await metadata.write(
        lambda machine: machine.decide_register_broker(registration, next_offset=metadata.next_offset)
    )
    return BrokerRegistrationResponse(broker_epoch=epoch)


def _registration(request: BrokerRegistrationRequest) -> Registration:
    return Registration(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        listeners=tuple(
            ListenerImage(each.name, Address(each.host, each.port), each.security_protocol)
            for each in request.listeners
        ),
        features={
            each.name: VersionRange(each.min_supported_version, each.max_supported_version) for each in request.features
        },
        rack=request.rack,
        directories=tuple(request.log_dirs),
        previous_epoch=request.previous_broker_epoch,
    )


def error_response(
    request: BrokerRegistrationRequest,  # noqa: ARG001
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(error_code=int(error.code), broker_epoch=NO_EPOCH)
