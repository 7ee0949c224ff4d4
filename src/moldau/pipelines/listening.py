"""What Spark tells of a query while it runs, written into the pipeline's folder."""

import json
import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from moldau.pipelines.folders import RunFolder
from moldau.pipelines.progress import Progress, progress_of


class FolderListener(StreamingQueryListener):
    """Hears of every query of the session, and notes those that carry the pipeline's name."""

    def __init__(self, folder: RunFolder, tell: Callable[[Progress], None]) -> None:
        self._folder, self._tell = folder, tell
        before = folder.progress
        self._rows_total = before.rows_total if before is not None and folder.has_checkpoint else 0
        self._noted: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """The folder knows already."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.note(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has changed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Whoever waits for the query hears of it."""

    def note_last(self, query: Any) -> None:
        """Events may come after the end of the job, or not at all: what they have not told yet, in its order."""
        for each in query.recentProgress:
            self.note(json.loads(each.json))

    def note(self, told: dict[str, Any]) -> None:
        name = told.get("name") or ""
        if name != self._folder.name and not name.startswith(f"{self._folder.name}-"):
            return
        with self._lock:
            batch, at = int(told["batchId"]), str(told["timestamp"])
            if (batch, at) <= self._noted.get(name, (-1, "")):
                return
            self._noted[name] = (batch, at)
            progress = progress_of(told, self._rows_total)
            self._rows_total = progress.rows_total
            self._folder.note_progress(progress)
        self._tell(progress)
