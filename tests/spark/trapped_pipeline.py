"""Jobs run as `moldau pipeline run` runs them, in one process, until a trap falls: then all of it is killed."""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trapped_sink import TrappedSource

from moldau.cli.connecting import connect
from moldau.pipelines import archive
from moldau.pipelines.archive import Archive
from moldau.pipelines.flow import Flow, SqlStep, TopicSink, TopicSource
from moldau.pipelines.folders import RunFolder, new_run
from moldau.pipelines.lakes import replace_folder
from moldau.pipelines.running import Conditions, run_flow


@dataclass(frozen=True, slots=True, kw_only=True)
class TrappedTopic(TopicSink):
    """The sink, as it is, with a trap in its commits."""

    trap: str

    def stream(self, frame: Any) -> Any:
        frame.sparkSession.dataSource.register(TrappedSource)
        return frame.writeStream.format("trapped").options(**self.write_options(), trap=self.trap)


def source_of(plan: dict[str, Any], job: str) -> TopicSource:
    return TopicSource(
        bootstrap_servers=plan["servers"], topics=(plan["topic"],), group=job, rows_per_batch_max=plan["rows_per_batch"]
    )


def conditions_of(plan: dict[str, Any], job: str) -> Conditions:
    folder = RunFolder(Path(plan["folder"]), job)
    return Conditions(folder=folder, master=plan["master"], once=True, settings=plan["settings"])


def run_transform(plan: dict[str, Any], trap: dict[str, Any]) -> None:
    sink = TrappedTopic(
        bootstrap_servers=plan["servers"], topic=plan["target"], trap=json.dumps({**trap, "group": os.getpgid(0)})
    )
    steps = (SqlStep("select uuid() as key, value from input"),)
    flow = Flow(job="transform", name="moved", source=source_of(plan, "moved"), steps=steps, sink=sink)
    run_flow(flow, conditions_of(plan, "moved"), new_run("transform", {}, plan["master"]))


def run_archive(plan: dict[str, Any], trap: dict[str, Any]) -> None:
    servers = plan["servers"]
    job = Archive(name="kept", root=plan["lake"], source=source_of(plan, "kept"), connect=lambda: connect(servers))
    if trap:
        set_trap(trap)
    job.run(conditions_of(plan, "kept"), new_run("archive", {}, plan["master"]))


def set_trap(trap: dict[str, Any]) -> None:
    """Between the files of a batch and their place."""

    def replaced(spark: Any, source: str, target: str) -> None:
        if f"/batch={trap['batch']}" in target:
            Path(trap["note"]).write_text(target)
            os.killpg(0, signal.SIGKILL)
        replace_folder(spark, source, target)

    vars(archive)["replace_folder"] = replaced


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    run_transform(plan, plan["transform_trap"])
    run_archive(plan, plan["archive_trap"])
