"""Fetch sessions: a consumer with many partitions that are idle, but for one."""

from dataclasses import dataclass, field
from typing import Final

from moldau.cli.bench.requests import produce_frame
from moldau.cli.bench.streams import Address
from moldau.cli.errors import CommandError
from moldau.records.builder import build_batch
from moldau.wire.messages import FetchRequest, FetchResponse
from moldau_dev.bench.growth.lines import Line

FETCH_VERSION: Final = 12
FETCH_BYTES_MAX: Final = 1 << 20


@dataclass(slots=True)
class Consumer:
    """A fetch session over all partitions of some topics, which are given with their partition counts."""

    address: Address
    topics: dict[str, int]
    line: Line = field(init=False)
    _session_id: int = 0
    _epoch: int = 0

    def __post_init__(self) -> None:
        self.line = Line(self.address)
        self.fetch({topic: [0] * count for topic, count in self.topics.items()})

    def request(self, named: dict[str, list[int]], wait_ms: int = 0) -> FetchRequest:
        """The next fetch, from these offsets of the first partitions of each topic."""
        topics = [
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES_MAX
                    )
                    for index, offset in enumerate(offsets)
                ],
            )
            for topic, offsets in named.items()
        ]
        return FetchRequest(
            session_id=self._session_id,
            session_epoch=self._epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            topics=topics,
        )

    def fetch(self, named: dict[str, list[int]]) -> FetchResponse:
        response: FetchResponse = self.line.ask(FETCH_VERSION, self.request(named))
        if response.error_code or not response.session_id:
            raise CommandError(f"the broker gave no fetch session: error {response.error_code}")
        self._session_id = response.session_id
        self._epoch += 1
        return response

    def close(self) -> None:
        self.line.close()

    def fetch_nothing(self) -> None:
        self.fetch({})


class Change:
    """Appends a record to one topic, and fetches it in the session."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._producer = Line(consumer.address)
        self._frame = produce_frame(topic, 0, bytes(build_batch([(0, None, b"value", ())])))
        self._offset = 0

    def __call__(self) -> None:
        self._producer.send(self._frame)
        self._producer.receive()
        (topic,) = self._consumer.fetch({}).responses
        self._offset = topic.partitions[0].high_watermark
        self._consumer.fetch({self._topic: [self._offset]})

    def close(self) -> None:
        self._producer.close()
