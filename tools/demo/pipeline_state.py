"""The state of the pipeline from outside: lag of its groups, open transactions, started and finished batches."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.client.blocking_client import BlockingClient
from moldau.client.groups import Groups
from moldau.client.transactions import Transactions
from moldau.client.types import LATEST, Isolation
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition

OPEN: Final = "Ongoing"


@dataclass(frozen=True, slots=True)
class Batches:
    """The last started and the last finished batch of a checkpoint; -1 if there is none."""

    begun: int
    finished: int

    @property
    def is_in_the_middle(self) -> bool:
        return self.begun > self.finished


def batches(checkpoint: Path) -> Batches:
    return Batches(_last(checkpoint / "offsets"), _last(checkpoint / "commits"))


def _last(folder: Path) -> int:
    return max((int(each.name) for each in folder.glob("[0-9]*") if each.name.isdecimal()), default=-1)


def transactional_id(checkpoint: Path) -> str | None:
    """Return the transactional id of the query with this checkpoint, once it has started."""
    try:
        return f"moldau-spark-{json.loads((checkpoint / 'metadata').read_text())['id']}"
    except (FileNotFoundError, ValueError):
        return None


def transaction_state(client: BlockingClient, name: str) -> str:
    try:
        return client.run(Transactions(client.asynchronous).describe(name)).state
    except KafkaError:
        return "none"


class Lags:
    """The lag of each group of the pipeline, as every tool sees it."""

    def __init__(self, client: BlockingClient, groups: Mapping[str, tuple[str, str]]) -> None:
        """`groups` maps a display name to a group and a topic."""
        self._client, self._groups = client, groups
        self._partitions = {
            topic: len(client.describe_topic(topic).partitions) for topic in {topic for _, topic in groups.values()}
        }

    def now(self) -> dict[str, int]:
        """Return the lags in the order of the names: a part is queried after the parts whose output it reads."""
        return {name: self._lag(group, topic) for name, (group, topic) in self._groups.items()}

    def _lag(self, group: str, topic: str) -> int:
        places = [TopicPartition(topic, number) for number in range(self._partitions[topic])]
        ends = self._client.list_offsets(dict.fromkeys(places, LATEST), isolation=Isolation.READ_COMMITTED)
        committed = self._client.run(Groups(self._client.asynchronous).offsets(group))
        return sum(max(ends[place].offset - committed.get(place, 0), 0) for place in places)
