"""One request for each API, which its handler takes up if it is allowed to, and what to read from a response."""

from collections.abc import Callable
from typing import Any

from broker_scene import batch

from moldau.wire import messages as m

ACL = m.CreateAclsRequest.AclCreation(
    resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
)
# A request of each API that succeeds or fails by its content, once it is authorized.
REQUESTS: dict[str, Callable[[], Any]] = {
    "Produce": lambda: m.ProduceRequest(
        acks=1,
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                name="t", partition_data=[m.ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))]
            )
        ],
    ),
    "Fetch": lambda: m.FetchRequest(
        topics=[m.FetchRequest.FetchTopic(topic="t", partitions=[m.FetchRequest.FetchPartition(partition=0)])]
    ),
    "ListOffsets": lambda: m.ListOffsetsRequest(
        topics=[
            m.ListOffsetsRequest.ListOffsetsTopic(
                name="t", partitions=[m.ListOffsetsRequest.ListOffsetsPartition(timestamp=-1)]
            )
        ]
    ),
    "Metadata": lambda: m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")]),
    "CreateTopics": lambda: m.CreateTopicsRequest(
        topics=[m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    ),
    "DeleteTopics": lambda: m.DeleteTopicsRequest(topic_names=["t"]),
    "DeleteRecords": lambda: m.DeleteRecordsRequest(
        topics=[
            m.DeleteRecordsRequest.DeleteRecordsTopic(
                name="t", partitions=[m.DeleteRecordsRequest.DeleteRecordsPartition()]
            )
        ]
    ),
    "FindCoordinator": lambda: m.FindCoordinatorRequest(key="g", coordinator_keys=["g"]),
    "OffsetCommit": lambda: m.OffsetCommitRequest(
        group_id="g",
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t", partitions=[m.OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=1)]
            )
        ],
    ),
    "OffsetFetch": lambda: m.OffsetFetchRequest(
        group_id="g",
        topics=[m.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        groups=[
            m.OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id="g", topics=[m.OffsetFetchRequest.OffsetFetchRequestTopics(partition_indexes=[0])]
            )
        ],
    ),
    "JoinGroup": lambda: m.JoinGroupRequest(group_id="g", session_timeout_ms=10_000, protocol_type="consumer"),
    "Heartbeat": lambda: m.HeartbeatRequest(group_id="g", member_id="m"),
    "LeaveGroup": lambda: m.LeaveGroupRequest(group_id="g", member_id="m"),
    "SyncGroup": lambda: m.SyncGroupRequest(
        group_id="g", member_id="m", protocol_type="consumer", protocol_name="range"
    ),
    "DescribeGroups": lambda: m.DescribeGroupsRequest(groups=["g"]),
    "ListGroups": lambda: m.ListGroupsRequest(),
    "DeleteGroups": lambda: m.DeleteGroupsRequest(groups_names=["g"]),
    "OffsetDelete": lambda: m.OffsetDeleteRequest(
        group_id="g",
        topics=[
            m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name="t", partitions=[m.OffsetDeleteRequest.OffsetDeleteRequestPartition()]
            )
        ],
    ),
    "ConsumerGroupHeartbeat": lambda: m.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", subscribed_topic_names=["t"], rebalance_timeout_ms=1000, topic_partitions=[]
    ),
    "ConsumerGroupDescribe": lambda: m.ConsumerGroupDescribeRequest(group_ids=["g"]),
    "ShareFetch": lambda: m.ShareFetchRequest(
        group_id="g",
        member_id="m",
        topics=[m.ShareFetchRequest.FetchTopic(partitions=[m.ShareFetchRequest.FetchPartition()])],
    ),
    "ShareAcknowledge": lambda: m.ShareAcknowledgeRequest(
        group_id="g",
        member_id="m",
        topics=[
            m.ShareAcknowledgeRequest.AcknowledgeTopic(
                partitions=[
                    m.ShareAcknowledgeRequest.AcknowledgePartition(
                        acknowledgement_batches=[m.ShareAcknowledgeRequest.AcknowledgementBatch(acknowledge_types=[1])]
                    )
                ]
            )
        ],
    ),
    "ShareGroupHeartbeat": lambda: m.ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", subscribed_topic_names=["t"]
    ),
    "ShareGroupDescribe": lambda: m.ShareGroupDescribeRequest(group_ids=["g"]),
    "DescribeShareGroupOffsets": lambda: m.DescribeShareGroupOffsetsRequest(
        groups=[
            m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(
                group_id="g",
                topics=[
                    m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic(
                        topic_name="t", partitions=[0]
                    )
                ],
            )
        ]
    ),
    "AlterShareGroupOffsets": lambda: m.AlterShareGroupOffsetsRequest(
        group_id="g",
        topics=[
            m.AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic(
                topic_name="t",
                partitions=[m.AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition(start_offset=1)],
            )
        ],
    ),
    "DeleteShareGroupOffsets": lambda: m.DeleteShareGroupOffsetsRequest(
        group_id="g", topics=[m.DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(topic_name="t")]
    ),
    "InitializeShareGroupState": lambda: m.InitializeShareGroupStateRequest(
        group_id="g",
        topics=[
            m.InitializeShareGroupStateRequest.InitializeStateData(
                partitions=[m.InitializeShareGroupStateRequest.PartitionData()]
            )
        ],
    ),
    "ReadShareGroupState": lambda: m.ReadShareGroupStateRequest(
        group_id="g",
        topics=[m.ReadShareGroupStateRequest.ReadStateData(partitions=[m.ReadShareGroupStateRequest.PartitionData()])],
    ),
    "WriteShareGroupState": lambda: m.WriteShareGroupStateRequest(
        group_id="g",
        topics=[
            m.WriteShareGroupStateRequest.WriteStateData(partitions=[m.WriteShareGroupStateRequest.PartitionData()])
        ],
    ),
    "DeleteShareGroupState": lambda: m.DeleteShareGroupStateRequest(
        group_id="g",
        topics=[
            m.DeleteShareGroupStateRequest.DeleteStateData(partitions=[m.DeleteShareGroupStateRequest.PartitionData()])
        ],
    ),
    "ReadShareGroupStateSummary": lambda: m.ReadShareGroupStateSummaryRequest(
        group_id="g",
        topics=[
            m.ReadShareGroupStateSummaryRequest.ReadStateSummaryData(
                partitions=[m.ReadShareGroupStateSummaryRequest.PartitionData()]
            )
        ],
    ),
    "InitProducerId": lambda: m.InitProducerIdRequest(),
    "AddPartitionsToTxn": lambda: m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        transactions=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(transactional_id="x")],
    ),
    "AddOffsetsToTxn": lambda: m.AddOffsetsToTxnRequest(transactional_id="x", group_id="g"),
    "EndTxn": lambda: m.EndTxnRequest(transactional_id="x"),
    "WriteTxnMarkers": lambda: m.WriteTxnMarkersRequest(
        markers=[
            m.WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=1,
                topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
            )
        ]
    ),
    "TxnOffsetCommit": lambda: m.TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        topics=[
            m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name="t", partitions=[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition()]
            )
        ],
    ),
    "DescribeProducers": lambda: m.DescribeProducersRequest(
        topics=[m.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])]
    ),
    "DescribeTransactions": lambda: m.DescribeTransactionsRequest(transactional_ids=["x"]),
    "ListTransactions": lambda: m.ListTransactionsRequest(),
    "OffsetForLeaderEpoch": lambda: m.OffsetForLeaderEpochRequest(
        topics=[
            m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic="t", partitions=[m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition()]
            )
        ]
    ),
    "DescribeConfigs": lambda: m.DescribeConfigsRequest(
        resources=[m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name="1")]
    ),
    "AlterConfigs": lambda: m.AlterConfigsRequest(
        resources=[m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="t")]
    ),
    "AlterReplicaLogDirs": lambda: m.AlterReplicaLogDirsRequest(
        dirs=[
            m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                path="/data",
                topics=[m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="t", partitions=[0])],
            )
        ]
    ),
    "DescribeLogDirs": lambda: m.DescribeLogDirsRequest(topics=None),
    "ListConfigResources": lambda: m.ListConfigResourcesRequest(),
    "CreatePartitions": lambda: m.CreatePartitionsRequest(
        topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=5, assignments=None)]
    ),
    "DescribeUserScramCredentials": lambda: m.DescribeUserScramCredentialsRequest(users=None),
    "AlterUserScramCredentials": lambda: m.AlterUserScramCredentialsRequest(
        deletions=[m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="alice", mechanism=1)]
    ),
    "IncrementalAlterConfigs": lambda: m.IncrementalAlterConfigsRequest(
        resources=[m.IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name="1")]
    ),
    "DescribeCluster": lambda: m.DescribeClusterRequest(),
    "AlterPartition": lambda: m.AlterPartitionRequest(broker_id=1),
    "AssignReplicasToDirs": lambda: m.AssignReplicasToDirsRequest(broker_id=1),
    "Envelope": lambda: m.EnvelopeRequest(request_data=b"", client_host_address=b""),
    "ControllerRegistration": lambda: m.ControllerRegistrationRequest(controller_id=1),
    "BrokerRegistration": lambda: m.BrokerRegistrationRequest(broker_id=1),
    "BrokerHeartbeat": lambda: m.BrokerHeartbeatRequest(broker_id=1),
    "AlterPartitionReassignments": lambda: m.AlterPartitionReassignmentsRequest(),
    "ListPartitionReassignments": lambda: m.ListPartitionReassignmentsRequest(topics=None),
    "ElectLeaders": lambda: m.ElectLeadersRequest(
        topic_partitions=[m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])]
    ),
    "UnregisterBroker": lambda: m.UnregisterBrokerRequest(broker_id=9),
    "UpdateFeatures": lambda: m.UpdateFeaturesRequest(
        feature_updates=[m.UpdateFeaturesRequest.FeatureUpdateKey(feature="metadata.version", max_version_level=1)]
    ),
    "Vote": lambda: m.VoteRequest(),
    "BeginQuorumEpoch": lambda: m.BeginQuorumEpochRequest(),
    "EndQuorumEpoch": lambda: m.EndQuorumEpochRequest(),
    "DescribeQuorum": lambda: m.DescribeQuorumRequest(),
    "FetchSnapshot": lambda: m.FetchSnapshotRequest(),
    "AddRaftVoter": lambda: m.AddRaftVoterRequest(voter_id=2),
    "RemoveRaftVoter": lambda: m.RemoveRaftVoterRequest(voter_id=9),
    "UpdateRaftVoter": lambda: m.UpdateRaftVoterRequest(voter_id=1),
    "AllocateProducerIds": lambda: m.AllocateProducerIdsRequest(broker_id=1),
    "DescribeClientQuotas": lambda: m.DescribeClientQuotasRequest(),
    "AlterClientQuotas": lambda: m.AlterClientQuotasRequest(
        entries=[
            m.AlterClientQuotasRequest.EntryData(
                entity=[m.AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="a")],
                ops=[m.AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1.0)],
            )
        ]
    ),
    "CreateAcls": lambda: m.CreateAclsRequest(creations=[ACL]),
    "DeleteAcls": lambda: m.DeleteAclsRequest(
        filters=[
            m.DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
            )
        ]
    ),
    "DescribeAcls": lambda: m.DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    ),
    "DescribeTopicPartitions": lambda: m.DescribeTopicPartitionsRequest(
        topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name="t")]
    ),
}


def error_codes(response: Any) -> list[int]:
    """All error codes in a response, wherever they are."""
    found: list[int] = []
    for name in getattr(response, "__slots__", ()):
        value = getattr(response, name)
        if name in ("error_code", "partition_error_code"):
            found.append(value)
        elif isinstance(value, list | tuple):
            for each in value:
                found += error_codes(each)
    return found
