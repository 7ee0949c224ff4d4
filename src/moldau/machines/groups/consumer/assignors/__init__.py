"""Server-side assignors, by the names in heartbeats and `group.consumer.assignors`."""

from collections.abc import Mapping
from typing import Final

from moldau.machines.groups.consumer.assignors.range import assign_range
from moldau.machines.groups.consumer.assignors.subscribers import Assignor, Subscriber
from moldau.machines.groups.consumer.assignors.uniform import assign_uniform

__all__ = ["ASSIGNORS", "Assignor", "Subscriber", "assign_range", "assign_uniform"]

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
