"""Looks up a topic with retries, because an election or the topic's creation may be in progress."""

from moldau.client.async_client import AsyncClient
from moldau.client.metadata import TopicView


async def look_up_topic(client: AsyncClient, topic: str) -> TopicView:
    """Return the topic's metadata; raises UnknownTopicOrPartition if it does not appear in time."""
    if not client.metadata.brokers:
        await client.refresh([])  # after a first response, the client retries lost connections
    return await client.retry(lambda: client.topic(topic), about=topic)
