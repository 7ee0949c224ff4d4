"""Copies that are damaged: found out, not served, given up where others have everything, and fetched again."""

from cluster_scene import CONTROLLERS, Cluster, on_cluster
from replica_scene import create, where

from moldau.machines.metadata.copies import LOST
from moldau.model.errors import ErrorCode
from moldau.wire import messages as m


def placed(cluster: Cluster, broker_id: int, directory: bytes) -> m.AssignReplicasToDirsRequest:
    copy = m.AssignReplicasToDirsRequest.PartitionData(partition_index=0)
    topic_id = cluster.nodes[1].broker.image.topics["t"].topic_id
    topic = m.AssignReplicasToDirsRequest.TopicData(topic_id=topic_id, partitions=[copy])
    return m.AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=cluster.broker(broker_id).epoch,
        directories=[m.AssignReplicasToDirsRequest.DirectoryData(id_=directory, topics=[topic])],
    )


def test_the_controller_hears_which_copies_are_lost() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        talker = await cluster.connect(1, CONTROLLERS)
        answer = await talker.ask(0, placed(cluster, 3, LOST))
        told = answer.directories[0].topics[0].partitions[0]
        assert (answer.error_code, answer.directories[0].id_) == (0, LOST)
        assert (told.partition_index, told.error_code) == (0, 0)
        await cluster.until(lambda: (where(cluster).leader_epoch, where(cluster).isr) == (1, (2, 3)), 1.0)
        cluster.kill(3)
        await cluster.until(lambda: where(cluster).isr == (2,), 5.0)
        answer = await talker.ask(0, placed(cluster, 2, LOST))
        told = answer.directories[0].topics[0].partitions[0]
        assert told.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE

    on_cluster(script)
