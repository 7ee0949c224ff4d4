"""Requests that would change a cluster in every way, if the peer that sends them were allowed to."""

from typing import Any, Final

from moldau.broker.controllers.forwarded_client import encode_principal
from moldau.records.builder import build_batch
from moldau.wire import messages as m
from moldau.wire.framing import LENGTH_BYTES, RequestHeader, frame_request
from moldau_dev.simulation.workload import TOPIC

TARGETS: Final = (TOPIC, "guarded")
TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE = 2, 4, 16
HUGE_EPOCH: Final = 1_000_000
USER: Final = "mallory"
HOSTILE_CONFIGS: Final = frozenset({"max.connections", "metrics", "retention.bytes"})


def changes_of(node_id: int) -> list[tuple[int, Any]]:
    """Versions and requests; some of them pretend to come from this node."""
    return [*_of_records(), *_of_topics(), *_of_access(), *_of_cluster(node_id), *_of_nodes(node_id)]


def _of_records() -> list[tuple[int, Any]]:
    batch = build_batch([(0, None, b"mallory", ())])
    return [
        *((9, _produce(topic, batch)) for topic in TARGETS),
        *((2, _delete_records(topic)) for topic in TARGETS),
        (
            8,
            m.OffsetCommitRequest(
                group_id="numbers",
                topics=[
                    m.OffsetCommitRequest.OffsetCommitRequestTopic(
                        name=TOPIC,
                        partitions=[m.OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=0)],
                    )
                ],
            ),
        ),
        (2, m.DeleteGroupsRequest(groups_names=["numbers"])),
    ]


def _produce(topic: str, batch: bytearray) -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    return m.ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )


def _delete_records(topic: str) -> m.DeleteRecordsRequest:
    partition = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
    topics = [m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])]
    return m.DeleteRecordsRequest(topics=topics, timeout_ms=1000)


def _of_topics() -> list[tuple[int, Any]]:
    created = m.CreateTopicsRequest.CreatableTopic(name=USER, num_partitions=1, replication_factor=1)
    grown = m.CreatePartitionsRequest.CreatePartitionsTopic(name="guarded", count=5, assignments=None)
    alter = m.IncrementalAlterConfigsRequest
    altered = [
        alter.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[alter.AlterableConfig(name=key, value=value)]
        )
        for kind, name, key, value in (
            (BROKER_RESOURCE, "", "max.connections", "0"),
            (CLIENT_METRICS_RESOURCE, USER, "metrics", "*"),
            (TOPIC_RESOURCE, "guarded", "retention.bytes", "0"),
        )
    ]
    return [
        (7, m.CreateTopicsRequest(topics=[created], timeout_ms=1000)),
        (5, m.DeleteTopicsRequest(topic_names=list(TARGETS), timeout_ms=1000)),
        (3, m.CreatePartitionsRequest(topics=[grown], timeout_ms=1000)),
        (1, alter(resources=altered)),
    ]


def _of_access() -> list[tuple[int, Any]]:
    acl = m.CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name="*",
        resource_pattern_type=3,
        principal=f"User:{USER}",
        host="*",
        operation=2,
        permission_type=3,
    )
    every = m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    quota = m.AlterClientQuotasRequest.EntryData(
        entity=[m.AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=None)],
        ops=[m.AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1.0)],
    )
    credential = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="admin", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
    )
    return [
        (3, m.CreateAclsRequest(creations=[acl])),
        (3, m.DeleteAclsRequest(filters=[every])),
        (1, m.AlterClientQuotasRequest(entries=[quota])),
        (0, m.AlterUserScramCredentialsRequest(upsertions=[credential])),
        (3, m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)),
    ]


def _of_cluster(node_id: int) -> list[tuple[int, Any]]:
    moved = m.AlterPartitionReassignmentsRequest.ReassignableTopic(
        name="guarded",
        partitions=[m.AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[node_id])],
    )
    feature = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=3)
    return [
        (0, m.AlterPartitionReassignmentsRequest(topics=[moved], timeout_ms=1000)),
        (0, m.UnregisterBrokerRequest(broker_id=node_id)),
        (1, m.UpdateFeaturesRequest(feature_updates=[feature], timeout_ms=1000)),
        (2, m.ElectLeadersRequest(election_type=1, topic_partitions=None, timeout_ms=1000)),
    ]


def _of_nodes(node_id: int) -> list[tuple[int, Any]]:
    """Requests that only nodes send: to register, to lead, to replicate, to act for another client."""
    vote = m.VoteRequest.PartitionData(
        partition_index=0,
        replica_epoch=HUGE_EPOCH,
        replica_id=node_id,
        last_offset_epoch=HUGE_EPOCH,
        last_offset=1 << 40,
    )
    begin = m.BeginQuorumEpochRequest.PartitionData(partition_index=0, leader_id=node_id, leader_epoch=HUGE_EPOCH)
    metadata = "__cluster_metadata"
    created = m.CreateTopicsRequest.CreatableTopic(name=USER, num_partitions=1, replication_factor=1)
    fetched = m.FetchRequest.FetchTopic(
        topic="guarded", partitions=[m.FetchRequest.FetchPartition(partition=0, fetch_offset=1 << 40)]
    )
    return [
        (0, m.VoteRequest(topics=[m.VoteRequest.TopicData(topic_name=metadata, partitions=[vote])])),
        (
            0,
            m.BeginQuorumEpochRequest(
                topics=[m.BeginQuorumEpochRequest.TopicData(topic_name=metadata, partitions=[begin])]
            ),
        ),
        (0, m.BrokerRegistrationRequest(broker_id=99, cluster_id="x", incarnation_id=bytes(15) + b"x")),
        (0, m.BrokerHeartbeatRequest(broker_id=node_id, broker_epoch=1, want_fence=True, want_shut_down=True)),
        (0, m.ControllerRegistrationRequest(controller_id=99, incarnation_id=bytes(15) + b"x")),
        (12, m.FetchRequest(replica_id=node_id, topics=[fetched], max_wait_ms=10, min_bytes=1)),
        (1, m.WriteTxnMarkersRequest(markers=[])),
        (0, _envelope(m.CreateTopicsRequest(topics=[created], timeout_ms=1000))),
    ]


def _envelope(request: Any) -> m.EnvelopeRequest:
    """A request as if a broker forwarded it for a super user."""
    header = RequestHeader(request.API_KEY, 7, 1, USER)
    frame = b"".join(bytes(piece) for piece in frame_request(header, request))  # type: ignore[arg-type]
    return m.EnvelopeRequest(
        request_data=frame[LENGTH_BYTES:],
        request_principal=encode_principal("User:admin", is_token_authenticated=False),
        client_host_address=bytes([127, 0, 0, 1]),
    )
