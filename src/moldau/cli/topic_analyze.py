"""`moldau topic analyze`: sizes, times, batches, compression and keys of a topic."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from moldau.cli.output import human_bytes, show_json, show_table

if TYPE_CHECKING:
    from moldau.client.topic_analysis import PartitionAnalysis, Sample, TopicAnalysis

KEYS_SHOWN: Final = 5
KEY_LENGTH_MAX: Final = 40
COLUMNS: Final = ("partition", "start", "end", "records", "size", "oldest", "newest", "per second")


async def analyze(bootstrap: str, topic: str, sample_records: int, *, json: bool) -> None:
    """Analyze a topic and print the result."""
    from moldau.cli.cluster_client import connect_async
    from moldau.client.topic_analysis import analyze_topic

    async with connect_async(bootstrap) as client:
        found = await analyze_topic(client, topic, sample_records)
    if json:
        show_json(_as_json(topic, found))
    else:
        _show(found)


def _show(found: "TopicAnalysis") -> None:
    numbers = [each for each in COLUMNS if each not in ("oldest", "newest")]
    show_table(COLUMNS, [_row(each) for each in found.partitions], numbers=numbers)
    sample = found.sample
    if not sample.records:
        print("\nno records to sample")
        return
    codecs = ", ".join(f"{count} {codec}" for codec, count in sample.codecs.most_common())
    print(f"\nsample       {sample.records} of the newest records in {sample.batches} batches")
    print(f"batches      {sample.records / sample.batches:.1f} records, ", end="")
    print(f"{human_bytes(sample.batch_bytes // sample.batches)} on average")
    print(f"compression  {codecs}; {sample.compression_ratio or 1:.2f} to 1")
    sizes = (f"{label} {human_bytes(size)}" for label, size in _sizes(sample).items())
    print(f"records      {', '.join(sizes)}; {sample.tombstones} tombstones")
    print(f"keys         {len(sample.keys)} different; {sample.without_key} records without a key")
    for key, count in sample.keys.most_common(KEYS_SHOWN):
        print(f"             {100 * count / sample.records:5.1f} %  {_key_text(key)}")


def _row(each: "PartitionAnalysis") -> tuple[object, ...]:
    return (
        each.partition,
        each.extent.start,
        each.extent.end,
        each.offsets,
        None if each.size_bytes is None else human_bytes(each.size_bytes),
        _time_text(each.oldest_ms),
        _time_text(each.newest_ms),
        None if each.per_second is None else f"{each.per_second:.1f}",
    )


def _time_text(time_ms: int | None) -> str | None:
    """Return a time in UTC; None for a time that is no date, such as -1."""
    if time_ms is None or time_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def _sizes(sample: "Sample") -> dict[str, int]:
    return {
        label: sample.record_bytes_at(share) or 0 for label, share in (("median", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def _key_text(key: bytes) -> str:
    """Return the start of a key; bytes that are not printable text are escaped."""
    text = key[:KEY_LENGTH_MAX].decode(errors="backslashreplace")
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return shown + ("…" if len(key) > KEY_LENGTH_MAX else "")


def _as_json(topic: str, found: "TopicAnalysis") -> dict[str, Any]:
    return {
        "topic": topic,
        "partitions": [
            {
                "partition": each.partition,
                "start": each.extent.start,
                "end": each.extent.end,
                "size_bytes": each.size_bytes,
                "oldest_ms": each.oldest_ms,
                "newest_ms": each.newest_ms,
                "records_per_second": each.per_second,
            }
            for each in found.partitions
        ],
        "sample": _sample_as_json(found.sample),
    }


def _sample_as_json(sample: "Sample") -> dict[str, Any]:
    return {
        "records": sample.records,
        "batches": sample.batches,
        "batch_bytes": sample.batch_bytes,
        "compression": dict(sample.codecs.most_common()),
        "compression_ratio": sample.compression_ratio,
        "record_bytes": _sizes(sample) if sample.records else None,
        "tombstones": sample.tombstones,
        "records_without_key": sample.without_key,
        "different_keys": len(sample.keys),
        "most_frequent_keys": [
            {"key": _key_text(key), "records": count} for key, count in sample.keys.most_common(KEYS_SHOWN)
        ],
    }
