"""A topic that was deleted and created again is another one: a checkpoint that counts in the old must not go on in it.

Spark's checkpoint has offsets alone, and of its first batch only the end. So what the ids of the topics were, and where
that batch began, is kept beside it: <root>/<name>/topics.json
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
    """The source that reads these topics and no later ones of their names."""
    if source.is_bounded:
        return source  # it begins anew each time
    return replace(source, options={**source.options, **topic_options(ids, folder, checkpoint, source.starting)})


def topic_options(
    ids: Mapping[str, str], folder: RunFolder, checkpoint: str | None = None, starting: str = "earliest"
) -> dict[str, str]:
    """Options of a source that is to read the topics with these ids, and would begin there in its first run.

    `checkpoint` is the place of one that is not in the folder. PipelineError if it belongs to an earlier topic.
    """
    known = _known(folder, checkpoint)
    changed = [name for name, topic_id in ids.items() if topic_id and known.get(name, topic_id) != topic_id]
    if changed:
        told = ", ".join(f"{name} (its id was {known[name]} and is {ids[name]})" for name in sorted(changed))
        raise PipelineError(
            f"{told} was deleted and created again since {folder.name} has read it: where that was means nothing in "
            f"the new topic. Begin anew with another --name, or remove {folder.path}"
        )
    # The others too: a run that is refused later, as it is of another topic, must not have erased anything.
    kept = {**ids, **known}
    begun = _begun(folder, checkpoint)
    _keep(folder, checkpoint, kept, begun or starting)
    # Between our look and Spark's first one, a topic could still be created again.
    options = {"topicIds": json.dumps({name: kept[name] for name in ids})}
    return options if begun is None else {**options, "startingOffsets": _beginning(begun, starting, ids)}


def _known(folder: RunFolder, checkpoint: str | None) -> dict[str, str]:
    """The ids that the checkpoint's offsets count in; none if there is no checkpoint yet."""
    return dict(_shape(folder, checkpoint).get("ids", {}))


def _begun(folder: RunFolder, checkpoint: str | None) -> str | None:
    """Where the first batch began, if there may be one: `--from -10` is another place by now.

    Spark has written down where it ends. If it was left undone, its rows are lost unless it begins there again.
    """
    place = folder.checkpoint
    if checkpoint is None and not (place / "offsets" / "0").exists() and not any(place.glob("*/offsets/0")):
        return None
    return _shape(folder, checkpoint).get("starting")


def _beginning(begun: str, starting: str, topics: Iterable[str]) -> str:
    """As it was; partitions that are new since then, and topics that were not read, begin where they would now."""
    if not _is_offsets(begun):
        return begun
    before, now = json.loads(begun), json.loads(starting) if _is_offsets(starting) else {}
    if not set(topics) <= set(before):
        return starting
    return json.dumps({topic: {**now.get(topic, {}), **before[topic]} for topic in topics})


def _is_offsets(text: str) -> bool:
    return text.startswith("{")


def _shape(folder: RunFolder, checkpoint: str | None) -> dict[str, Any]:
    """What was written for this checkpoint, if there is one."""
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
