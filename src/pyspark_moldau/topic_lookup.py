"""Looking a topic up: who asks once meets clusters in the middle of an election, or of creating the topic."""

from moldau.client.async_client import AsyncClient
from moldau.client.metadata import TopicView


async def look_up_topic(client: AsyncClient, topic: str) -> TopicView:
    """The topic, as soon as the cluster can tell; UnknownTopicOrPartition when it still knows none after a while."""
    if not client.metadata.brokers:
        await client.refresh([])  # of a cluster that has answered once, a lost connection is borne
    return await client.retry(lambda: client.topic(topic), about=topic)
