"""Shared by the five share-state APIs: requests between brokers, with a result for each share partition."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.shares.persister import SharePartitionKey
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicId

Response = TypeVar("Response")

Decide = Callable[[SharePartitionKey, Any], Awaitable[Any]]
"""Returns the result for a partition of the request; raises its error."""


@dataclass(frozen=True, slots=True)
class StateResponse(Generic[Response]):
    """The classes of a response, of its topics and of its partitions."""

    response: Callable[..., Response]
    topic: Callable[..., Any]
    partition: Callable[..., Any]

    async def respond_each(self, request: Any, context: ShareContext, decide: Decide) -> Response:
        """Decide for all share partitions of the request; each has its own error."""
        context.authorize(Operation.CLUSTER_ACTION, CLUSTER)

        async def respond(topic_id: TopicId, partition: Any) -> Any:
            try:
                return await decide(SharePartitionKey(request.group_id, topic_id, partition.partition), partition)
            except KafkaError as error:
                return self._error_result(partition.partition, error)

        results = []
        for topic in request.topics:
            topic_id = TopicId(topic.topic_id)
            partitions = await asyncio.gather(*(respond(topic_id, each) for each in topic.partitions))
            results.append(self.topic(topic_id=topic_id, partitions=partitions))
        return self.response(results=results)

    def error_response(self, request: Any, error: KafkaError, version: int) -> Response:  # noqa: ARG002
        """Return the same error for every share partition."""
        return self.response(
            results=[
                self.topic(
                    topic_id=topic.topic_id,
                    partitions=[self._error_result(each.partition, error) for each in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _error_result(self, partition: int, error: KafkaError) -> Any:
        return self.partition(partition=partition, error_code=int(error.code), error_message=error.message)
