"""A pipeline does not go on in a topic that was deleted and recreated under the name of one it has read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.pipelines.flow import TopicSource
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.run_folder import RunFolder
from moldau.pipelines.topic_identity import FILE, with_known_topics

SOURCE = TopicSource(bootstrap_servers="here:9092", topics=("clicks",), options={"a": "b"})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path, "p")


def begin(folder: RunFolder) -> None:
    """Create a checkpoint, like Spark at the first batch."""
    folder.checkpoint.mkdir(parents=True)
    (folder.checkpoint / "metadata").write_text("{}")


def saved_ids(source: TopicSource) -> object:
    return json.loads(source.options["topicIds"])


@pytest.mark.proves("D1")
def test_recreated_topic_is_rejected_once_a_checkpoint_exists(folder: RunFolder) -> None:
    assert saved_ids(with_known_topics(SOURCE, {"clicks": "first"}, folder)) == {"clicks": "first"}
    begin(folder)
    same = with_known_topics(SOURCE, {"clicks": "first"}, folder)
    assert same.options == {"a": "b", "topicIds": '{"clicks": "first"}'}
    with pytest.raises(PipelineError, match=r"clicks \(its id was first and is second\) was deleted and recreated"):
        with_known_topics(SOURCE, {"clicks": "second"}, folder)
    with pytest.raises(PipelineError, match="recreated"):  # a second attempt fails too
        with_known_topics(SOURCE, {"clicks": "second"}, folder)


def test_recreated_topic_is_accepted_before_the_first_batch(folder: RunFolder) -> None:
    with_known_topics(SOURCE, {"clicks": "first"}, folder)
    assert saved_ids(with_known_topics(SOURCE, {"clicks": "second"}, folder)) == {"clicks": "second"}


@pytest.mark.proves("D1")
def test_remote_checkpoint_is_identified_by_its_path(folder: RunFolder) -> None:
    with_known_topics(SOURCE, {"clicks": "first"}, folder, "s3a://here")
    with pytest.raises(PipelineError, match="recreated"):
        with_known_topics(SOURCE, {"clicks": "second"}, folder, "s3a://here")
    assert saved_ids(with_known_topics(SOURCE, {"clicks": "second"}, folder, "s3a://there")) == {"clicks": "second"}


def test_bounded_job_ignores_earlier_topic_ids(folder: RunFolder) -> None:
    begin(folder)
    bounded = TopicSource(bootstrap_servers="here:9092", topics=("clicks",), ending="{}")
    assert with_known_topics(bounded, {"clicks": "x"}, folder) is bounded


def test_brokers_without_topic_ids_are_accepted(folder: RunFolder) -> None:
    with_known_topics(SOURCE, {"clicks": ""}, folder)
    begin(folder)
    assert saved_ids(with_known_topics(SOURCE, {"clicks": ""}, folder)) == {"clicks": ""}


@pytest.mark.proves("D1")
def test_run_of_another_topic_keeps_the_saved_ids(folder: RunFolder) -> None:
    """It is rejected later, because the checkpoint belongs to another job."""
    with_known_topics(SOURCE, {"clicks": "first"}, folder)
    begin(folder)
    mistaken = replace(SOURCE, topics=("orders",))
    assert saved_ids(with_known_topics(mistaken, {"orders": "x"}, folder)) == {"orders": "x"}
    with pytest.raises(PipelineError, match=r"clicks \(its id was first and is second\)"):
        with_known_topics(SOURCE, {"clicks": "second"}, folder)


def starting(offsets: dict[str, dict[str, int]]) -> TopicSource:
    """A source with resolved offsets, like those of --from -10, which are resolved for each run."""
    return replace(SOURCE, starting=json.dumps(offsets), topics=tuple(offsets))


def starting_offsets(source: TopicSource) -> object:
    return json.loads(source.read_options()["startingOffsets"])


@pytest.mark.proves("D1")
@pytest.mark.parametrize("part", ["", "clean"])
def test_rerun_first_batch_starts_at_its_original_offsets(folder: RunFolder, part: str) -> None:
    with_known_topics(starting({"clicks": {"0": 90}}), {"clicks": "x"}, folder)
    begin(folder)
    planned = folder.checkpoint / part / "offsets" / "0"
    again = with_known_topics(starting({"clicks": {"0": 95}}), {"clicks": "x"}, folder)
    assert starting_offsets(again) == {"clicks": {"0": 95}}  # no batch was planned yet, so --from still counts
    planned.parent.mkdir(parents=True)
    planned.write_text("v1")
    with_known_topics(starting({"orders": {"0": 7}}), {"orders": "y"}, folder)  # by mistake
    again = with_known_topics(starting({"clicks": {"0": 190, "1": 20}}), {"clicks": "x"}, folder)
    assert starting_offsets(again) == {"clicks": {"0": 95, "1": 20}}  # a partition was added
    assert starting_offsets(with_known_topics(SOURCE, {"clicks": "x"}, folder)) == {"clicks": {"0": 95}}


def test_first_batch_from_earliest_stays_at_earliest(folder: RunFolder) -> None:
    with_known_topics(SOURCE, {"clicks": "x"}, folder, "s3a://here")
    again = with_known_topics(starting({"clicks": {"0": 190}}), {"clicks": "x"}, folder, "s3a://here")
    assert again.read_options()["startingOffsets"] == "earliest"
    other = with_known_topics(starting({"clicks": {"0": 190}}), {"clicks": "x"}, folder, "s3a://there")
    assert starting_offsets(other) == {"clicks": {"0": 190}}


def test_file_of_an_older_version_has_no_starting_offsets(folder: RunFolder) -> None:
    begin(folder)
    (folder.path / FILE).write_text('{"checkpoint": "s3a://here", "ids": {"clicks": "x"}}')
    again = with_known_topics(starting({"clicks": {"0": 190}}), {"clicks": "x"}, folder, "s3a://here")
    assert starting_offsets(again) == {"clicks": {"0": 190}}


def test_unreadable_topics_file_is_named(folder: RunFolder) -> None:
    begin(folder)
    (folder.path / FILE).write_text("[")
    with pytest.raises(PipelineError, match=r"topics.json cannot be read"):
        with_known_topics(SOURCE, {"clicks": "x"}, folder)
