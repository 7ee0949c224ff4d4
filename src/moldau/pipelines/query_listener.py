"""What Spark tells of a query while it runs, written into the pipeline's folder."""

import json
import threading
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from moldau.pipelines.progress import Progress, progress_of
from moldau.pipelines.run_folder import RunFolder


class _ProgressAsText(JStreamingQueryListener):
    """What the JVM calls. Spark's own asks back for each field of a progress: hundreds of calls, 0.1 s of them."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        self.pylistener.note(json.loads(jevent.progress().json()))


class FolderListener(StreamingQueryListener):
    """Hears of every query of the session, and notes those that carry the pipeline's name."""

    def __init__(self, folder: RunFolder, tell: Callable[[Progress], None]) -> None:
        self._folder, self._tell = folder, tell
        self._parts = {each.part: each for each in folder.parts} if folder.has_checkpoint else {}
        self._order = list(self._parts)
        self._noted: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._is_over = False

    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_jlistenerobj"):
            self._jlistenerobj = SparkContext._jvm.PythonStreamingQueryListenerWrapper(_ProgressAsText(self))
        return self._jlistenerobj

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Queries are started in the order in which rows go through them."""
        part = self._part_of(event.name)
        if part is not None and part not in self._order:
            self._order.append(part)

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

    def end(self) -> None:
        """What is told later would be written over how the pipeline ended."""
        with self._lock:
            self._is_over = True

    def note(self, told: dict[str, Any]) -> None:
        part = self._part_of(told.get("name"))
        if part is None:
            return
        with self._lock:
            if self._is_over:
                return
            batch, at = int(told["batchId"]), str(told["timestamp"])
            if (batch, at) <= self._noted.get(part, (-1, "")):
                return
            self._noted[part] = (batch, at)
            before = self._parts.get(part)
            rows_before, late_before = (before.rows_total, before.late_total) if before is not None else (0, 0)
            progress = self._parts[part] = progress_of(told, rows_before, late_before, part)
            ordered = [*self._order, *(each for each in self._parts if each not in self._order)]
            self._folder.note_progress(*(self._parts[each] for each in ordered if each in self._parts))
            self._tell(progress)

    def _part_of(self, query: str | None) -> str | None:
        """What a query is called beside the pipeline's name; None if it is not the pipeline's."""
        name = self._folder.name
        if query == name:
            return ""
        return query.removeprefix(f"{name}-") if query is not None and query.startswith(f"{name}-") else None
