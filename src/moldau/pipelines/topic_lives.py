"""A topic that was deleted and created again is another one: a checkpoint that counts in the old must not go on in it.

Spark's checkpoint has offsets alone. So what the ids of the topics were is kept beside it: <root>/<name>/topics.json
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from moldau.pipelines.flow import TopicSource
from moldau.pipelines.folders import RunFolder
from moldau.pipelines.requirements import PipelineError

FILE: Final = "topics.json"


def with_known_topics(
    source: TopicSource, ids: Mapping[str, str], folder: RunFolder, checkpoint: str | None = None
) -> TopicSource:
    """The source that reads these topics and no later ones of their names."""
    if source.is_bounded:
        return source  # it begins anew each time
    return replace(source, options={**source.options, **topic_options(ids, folder, checkpoint)})


def topic_options(ids: Mapping[str, str], folder: RunFolder, checkpoint: str | None = None) -> dict[str, str]:
    """Options of a source that is to read the topics with these ids.

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
    kept = {**ids, **{name: topic_id for name, topic_id in known.items() if name in ids}}
    _keep(folder, checkpoint, kept)
    return {"topicIds": json.dumps(kept)}  # between our look and Spark's first one, it could still happen


def _known(folder: RunFolder, checkpoint: str | None) -> dict[str, str]:
    """The ids that the checkpoint's offsets count in; none if there is no checkpoint yet."""
    path = folder.path / FILE
    if not path.exists() or (checkpoint is None and not folder.has_checkpoint):
        return {}
    try:
        shape: dict[str, Any] = json.loads(path.read_text())
        return dict(shape["ids"]) if shape["checkpoint"] == checkpoint else {}
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} cannot be read: {error}") from error


def _keep(folder: RunFolder, checkpoint: str | None, ids: Mapping[str, str]) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    path = folder.path / FILE
    fresh = path.with_name(f"{FILE}.{os.getpid()}.new")
    fresh.write_text(json.dumps({"checkpoint": checkpoint, "ids": ids}, indent=2) + "\n")
    os.replace(fresh, path)
