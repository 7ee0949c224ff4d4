"""Start and end of a read as given by the options; `read_plan` resolves them to offsets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from moldau.model.ids import TopicPartition

LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
_NUMBER_MAX: Final = (1 << 63) - 1  # of offsets and times

Offsets: TypeAlias = dict[TopicPartition, int]


class OptionError(ValueError):
    """An option is missing, invalid, or not supported by this kind of query."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The earliest available offset."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The log end; with `read_committed`, the last stable offset."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset per partition; -2 means earliest, -1 means latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after this timestamp, in every partition."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a timestamp per partition."""

    times_ms: Mapping[TopicPartition, int]


Limit: TypeAlias = Earliest | Latest | AtOffsets | AtTime | AtTimes


def parse_limit(side: str, options: Mapping[str, str], default: Limit) -> Limit:
    """Parse the "starting" or "ending" limit. Precedence: one timestamp, timestamps per partition, offsets."""
    timestamp = options.get(f"{side}timestamp")
    if timestamp is not None:
        return AtTime(_moment(f"{side}Timestamp", timestamp))
    by_timestamp = options.get(f"{side}offsetsbytimestamp")
    if by_timestamp is not None:
        return AtTimes(parse_partition_numbers(f"{side}OffsetsByTimestamp", by_timestamp, at_least=0))
    offsets = options.get(f"{side}offsets")
    if offsets is None:
        return default
    match offsets.strip().lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case _:
            return AtOffsets(parse_partition_numbers(f"{side}Offsets", offsets, at_least=EARLIEST_OFFSET))


def parse_partition_numbers(option: str, text: str, *, at_least: int) -> Offsets:
    """`{"topic": {"0": 23, "1": -2}}`"""
    sample = 'like {"topic": {"0": 23, "1": 42}}'
    parsed = _json_object(option, text, sample)
    numbers: Offsets = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            raise OptionError(f"Option '{option}' must be JSON {sample}, but topic {topic!r} has {partitions!r}.")
        for partition, number in partitions.items():
            if type(number) is not int or not at_least <= number <= _NUMBER_MAX or not partition.isdecimal():
                raise OptionError(
                    f"Option '{option}' must be JSON {sample}, but partition {partition!r} of {topic!r} has {number!r}."
                )
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    """`{"topic": [0, 1]}`"""
    sample = 'like {"topic": [0, 1]}'
    found = []
    for topic, partitions in _json_object("assign", text, sample).items():
        if not isinstance(partitions, list) or any(type(each) is not int or each < 0 for each in partitions):
            raise OptionError(f"Option 'assign' must be JSON {sample}, but topic {topic!r} has {partitions!r}.")
        found += [TopicPartition(topic, each) for each in partitions]
    if not found:
        raise OptionError("Option 'assign' names no partition.")
    return tuple(sorted(set(found)))


def parse_topic_ids(text: str) -> dict[str, str]:
    """`{"topic": "OuZF5tKiRXuwSwpZyCdWgw"}`"""
    sample = 'like {"topic": "OuZF5tKiRXuwSwpZyCdWgw"}'
    parsed = _json_object("topicIds", text, sample)
    for topic, topic_id in parsed.items():
        if not isinstance(topic_id, str):
            raise OptionError(f"Option 'topicIds' must be JSON {sample}, but topic {topic!r} has {topic_id!r}.")
    return parsed


def offsets_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets in the checkpoint format: `{"topic": {"0": 5}}`."""
    shape: dict[str, dict[str, int]] = {}
    for where in sorted(offsets):
        shape.setdefault(where.topic, {})[str(where.partition)] = offsets[where]
    return shape


def parse_offsets_json(shape: Mapping[str, Mapping[str, int]] | None) -> Offsets:
    """Parse offsets from the checkpoint format."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in (shape or {}).items()
        for partition, offset in partitions.items()
    }


def _json_object(option: str, text: str, sample: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise OptionError(f"Option '{option}' must be JSON {sample}, not {text!r}.")
    return parsed


def _moment(option: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) > _NUMBER_MAX:
        raise OptionError(f"Option '{option}' must be a time in milliseconds since 1970, not {text!r}.")
    return int(text)
