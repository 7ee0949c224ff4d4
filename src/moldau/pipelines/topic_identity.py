"""Detects recreated topics: a checkpoint of a deleted topic must not be used with its successor of the same name.

Spark's checkpoint stores offsets only, and just the end of its first batch. So topic ids and the starting offsets
of that batch are stored beside it: <root>/<name>/topics.json
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from moldau.pipelines.flow import TopicSource
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.run_folder import RunFolder

FILE: Final = "topics.json"


def with_known_topics(
    source: TopicSource, ids: Mapping[str, str], folder: RunFolder, checkpoint: str | None = None
) -> TopicSource:
    """Return a source bound to these topic ids."""
    if source.is_bounded:
        return source  # a bounded job has no checkpoint
    return replace(source, options={**source.options, **topic_options(ids, folder, checkpoint, source.starting)})


def topic_options(
    ids: Mapping[str, str], folder: RunFolder, checkpoint: str | None = None, starting: str = "earliest"
) -> dict[str, str]:
    """Return the options that bind a source to topic ids; `starting` applies to its first run.

    `checkpoint` is a location outside the folder. Raises PipelineError if it belongs to a deleted topic.
    """
    known = _known(folder, checkpoint)
    changed = [name for name, topic_id in ids.items() if topic_id and known.get(name, topic_id) != topic_id]
    if changed:
        replaced = ", ".join(f"{name} (its id was {known[name]} and is {ids[name]})" for name in sorted(changed))
        raise PipelineError(
            f"{replaced} was deleted and recreated since {folder.name} last read it, so the offsets of the checkpoint "
            f"are invalid. Choose another --name, or remove {folder.path} to start over"
        )
    # Keep the other topics: a run that is rejected later, for another topic, must not have erased anything.
    kept = {**ids, **known}
    begun = _begun(folder, checkpoint)
    _keep(folder, checkpoint, kept, begun or starting)
    # A topic could still be recreated between this check and Spark's first request.
    options = {"topicIds": json.dumps({name: kept[name] for name in ids})}
    return options if begun is None else {**options, "startingOffsets": _beginning(begun, starting, ids)}


def _known(folder: RunFolder, checkpoint: str | None) -> dict[str, str]:
    """Return the topic ids of the checkpoint; empty without a checkpoint."""
    return dict(_shape(folder, checkpoint).get("ids", {}))


def _begun(folder: RunFolder, checkpoint: str | None) -> str | None:
    """Return the starting offsets of the first batch, if one may exist: `--from -10` resolves differently now.

    Spark has stored where it ends. If it was not committed, its rows are lost unless it starts there again.
    """
    place = folder.checkpoint
    if checkpoint is None and not (place / "offsets" / "0").exists() and not any(place.glob("*/offsets/0")):
        return None
    return _shape(folder, checkpoint).get("starting")


def _beginning(begun: str, starting: str, topics: Iterable[str]) -> str:
    """Keep the stored starting offsets; new partitions and new topics start as requested now."""
    if not _is_offsets(begun):
        return begun
    before, now = json.loads(begun), json.loads(starting) if _is_offsets(starting) else {}
    if not set(topics) <= set(before):
        return starting
    return json.dumps({topic: {**now.get(topic, {}), **before[topic]} for topic in topics})


def _is_offsets(text: str) -> bool:
    return text.startswith("{")


def _shape(folder: RunFolder, checkpoint: str | None) -> dict[str, Any]:
    """Return what was stored for this checkpoint, if it exists."""
    path = folder.path / FILE
    if not path.exists() or (checkpoint is None and not folder.has_checkpoint):
        return {}
    try:
        shape: dict[str, Any] = json.loads(path.read_text())
        return {**shape, "ids": dict(shape["ids"])} if shape["checkpoint"] == checkpoint else {}
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} cannot be read: {error}") from error


def _keep(folder: RunFolder, checkpoint: str | None, ids: Mapping[str, str], starting: str | None = None) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    path = folder.path / FILE
    fresh = path.with_name(f"{FILE}.{os.getpid()}.new")
    shape = {"checkpoint": checkpoint, "ids": ids, "starting": starting}
    fresh.write_text(json.dumps(shape, indent=2) + "\n")
    os.replace(fresh, path)
