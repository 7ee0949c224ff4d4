"""Concurrent jobs in one driver, as run by `moldau pipeline run`, each until its trap holds."""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from spark_drivers import report
from trapped_sink import TrappedSource

from moldau.cli.cluster_client import connect
from moldau.pipelines import archive_files, flow
from moldau.pipelines.activity import Activity
from moldau.pipelines.archive import Archive
from moldau.pipelines.flow import Flow, SqlStep, TopicSink, TopicSource
from moldau.pipelines.hadoop_files import replace_folder
from moldau.pipelines.job_runner import RunConfig, ignore_progress, run_flow
from moldau.pipelines.progress import Progress
from moldau.pipelines.run_folder import RunFolder, new_run
from pyspark_moldau import session

Tell: TypeAlias = Callable[[Progress], None]

RENAMING: Final = "renaming"  # the files of a batch are written, but not moved into place yet


def source_of(plan: dict[str, Any], job: str) -> TopicSource:
    return TopicSource(
        bootstrap_servers=plan["servers"], topics=(plan["topic"],), group=job, rows_per_batch_max=plan["rows_per_batch"]
    )


def conditions_of(plan: dict[str, Any], job: str, tell: Tell, *, once: bool = True) -> RunConfig:
    return RunConfig(folder=RunFolder(Path(plan["folder"]), job), master=plan["master"], once=once, on_progress=tell)


def run_transform(plan: dict[str, Any], tell: Tell = ignore_progress) -> None:
    sink = TopicSink(bootstrap_servers=plan["servers"], topic=f"{plan['topic']}.moved")
    steps = (SqlStep("select uuid() as key, value from input"),)
    job = Flow(job="transform", name="moved", source=source_of(plan, "moved"), steps=steps, sink=sink)
    run_flow(job, conditions_of(plan, "moved", tell), new_run("transform", {}, plan["master"]))


def run_archive(plan: dict[str, Any], tell: Tell = ignore_progress) -> None:
    servers = plan["servers"]
    job = Archive(name="kept", root=plan["lake"], source=source_of(plan, "kept"), connect=lambda: connect(servers))
    job.run(conditions_of(plan, "kept", tell), new_run("archive", {}, plan["master"]))


def run_activity(plan: dict[str, Any], tell: Tell = ignore_progress, *, once: bool = False) -> None:
    job = Activity(**plan["activity"])
    config = conditions_of(plan, job.name, tell, once=once)
    job.run(config, new_run("activity", {}, plan["master"]), Path(plan["folder"]) / "report.html")


def set_traps(plan: dict[str, Any]) -> None:
    """Set traps in commits to topics, by the suffix of the topic name, and in the archive's move of a batch."""
    plain = TopicSink.write_options

    def write_options(sink: TopicSink) -> dict[str, str]:
        name = "clean" if sink.topic is None else sink.topic.rpartition(".")[2]
        trap = plan["traps"].get(name, {})
        return {**plain(sink), "trap": json.dumps({**trap, "name": name, "pipe": plan["pipe"]})}

    def replaced(spark: Any, source: str, target: str) -> None:
        if target.startswith(plan["lake"]) and target.endswith(f"/batch={plan['traps']['kept']['first_batch']}"):
            report(plan["pipe"], "kept", RENAMING, plan["traps"]["kept"]["first_batch"])
            threading.Event().wait()
        replace_folder(spark, source, target)

    vars(flow)["FORMAT"] = "trapped"
    setattr(TopicSink, "write_options", write_options)  # noqa: B010
    vars(archive_files)["replace_folder"] = replaced


def setting(begun: threading.Event, _: Progress) -> None:
    begun.set()


def run_to_the_end(run: Callable[[dict[str, Any], Tell], None], plan: dict[str, Any], tell: Tell) -> None:
    """Run a job; a failure ends the process, since its trap cannot be reached any more."""
    try:
        run(plan, tell)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def run_driver(plan: dict[str, Any]) -> None:
    """Start each job after the first batch of the previous one, because Spark's workers time out otherwise."""
    spark = session("trapped", master=plan["master"], settings=plan["settings"])
    spark.dataSource.register(TrappedSource)
    set_traps(plan)
    for job in (run_transform, run_archive, run_activity):
        begun = threading.Event()
        listener = partial(setting, begun)
        threading.Thread(target=run_to_the_end, args=(job, plan, listener)).start()
        begun.wait()


if __name__ == "__main__":
    run_driver(json.loads(sys.argv[1]))
