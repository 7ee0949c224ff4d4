"""The progress listener saves and reports progress events. The test needs no Spark."""

from pathlib import Path
from typing import Any

import pytest

from moldau.pipelines.progress import Progress
from moldau.pipelines.query_listener import FolderListener
from moldau.pipelines.run_folder import RunFolder, new_run


def event(batch: int) -> dict[str, Any]:
    return {"name": "clicks", "batchId": batch, "timestamp": f"2026-01-01T00:00:{batch:02}.000Z", "numInputRows": 300}


@pytest.mark.proves("D4", part="metrics")
def test_progress_after_the_end_is_ignored(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "clicks")
    reported: list[Progress] = []
    with folder.locked(new_run("transform", {}, "local[*]")):
        listener = FolderListener(folder, reported.append)
        listener.note(event(7))
        listener.end()
    listener.note(event(8))
    assert [each.batch for each in reported] == [7]
    assert folder.progress is not None
    assert (folder.progress.batch, folder.progress.rows_total) == (7, 300)
    assert 'moldau_pipeline_up{pipeline="clicks"} 0\n' in (folder.path / "metrics.prom").read_text()
