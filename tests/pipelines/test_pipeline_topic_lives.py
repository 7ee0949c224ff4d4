"""A pipeline does not go on in a topic that was deleted and created again under the name of one it has read."""

import json
from pathlib import Path

import pytest

from moldau.pipelines.flow import TopicSource
from moldau.pipelines.folders import RunFolder
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.topic_lives import FILE, with_known_topics

SOURCE = TopicSource(bootstrap_servers="here:9092", topics=("clicks",), options={"a": "b"})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path, "p")


def begin(folder: RunFolder) -> None:
    """As Spark does with the first batch."""
    folder.checkpoint.mkdir(parents=True)
    (folder.checkpoint / "metadata").write_text("{}")


def told(source: TopicSource) -> object:
    return json.loads(source.options["topicIds"])


@pytest.mark.proves("D1")
def test_a_topic_of_another_life_is_refused_once_there_is_a_checkpoint(folder: RunFolder) -> None:
    assert told(with_known_topics(SOURCE, {"clicks": "first"}, folder)) == {"clicks": "first"}
    begin(folder)
    same = with_known_topics(SOURCE, {"clicks": "first"}, folder)
    assert same.options == {"a": "b", "topicIds": '{"clicks": "first"}'}
    with pytest.raises(PipelineError, match=r"clicks \(its id was first and is second\) was deleted and created again"):
        with_known_topics(SOURCE, {"clicks": "second"}, folder)
    with pytest.raises(PipelineError, match="created again"):  # and again
        with_known_topics(SOURCE, {"clicks": "second"}, folder)


def test_before_the_first_batch_nothing_is_known(folder: RunFolder) -> None:
    with_known_topics(SOURCE, {"clicks": "first"}, folder)
    assert told(with_known_topics(SOURCE, {"clicks": "second"}, folder)) == {"clicks": "second"}


@pytest.mark.proves("D1")
def test_a_checkpoint_elsewhere_is_known_by_its_place(folder: RunFolder) -> None:
    with_known_topics(SOURCE, {"clicks": "first"}, folder, "s3a://here")
    with pytest.raises(PipelineError, match="created again"):
        with_known_topics(SOURCE, {"clicks": "second"}, folder, "s3a://here")
    assert told(with_known_topics(SOURCE, {"clicks": "second"}, folder, "s3a://there")) == {"clicks": "second"}


def test_a_bounded_job_begins_anew(folder: RunFolder) -> None:
    begin(folder)
    bounded = TopicSource(bootstrap_servers="here:9092", topics=("clicks",), ending="{}")
    assert with_known_topics(bounded, {"clicks": "x"}, folder) is bounded


def test_brokers_without_ids_are_believed(folder: RunFolder) -> None:
    with_known_topics(SOURCE, {"clicks": ""}, folder)
    begin(folder)
    assert told(with_known_topics(SOURCE, {"clicks": ""}, folder)) == {"clicks": ""}


def test_a_file_that_cannot_be_read_is_named(folder: RunFolder) -> None:
    begin(folder)
    (folder.path / FILE).write_text("[")
    with pytest.raises(PipelineError, match=r"topics.json cannot be read"):
        with_known_topics(SOURCE, {"clicks": "x"}, folder)
