"""Writes the progress events of streaming queries to the pipeline's folder."""

import json
import threading
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from moldau.pipelines.progress import Progress, progress_of
from moldau.pipelines.run_folder import RunFolder


class _ProgressAsText(JStreamingQueryListener):
    """Passes events as JSON. Spark's own listener fetches each field in a separate call to the JVM, 0.1 s per event."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        self.pylistener.note(json.loads(jevent.progress().json()))


class FolderListener(StreamingQueryListener):
    """Receives events of all queries in the session and stores those of the pipeline."""

    def __init__(self, folder: RunFolder, on_progress: Callable[[Progress], None]) -> None:
        self._folder, self._on_progress = folder, on_progress
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
        """Register the query; queries start in data-flow order."""
        part = self._part_of(event.name)
        if part is not None and part not in self._order:
            self._order.append(part)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.note(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Ignore the event: there is no new progress."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Ignore the event: `awaitTermination` reports the end."""

    def note_last(self, query: Any) -> None:
        """Store progress whose events have not arrived; events may be late or lost at the end of a job."""
        for each in query.recentProgress:
            self.note(json.loads(each.json))

    def end(self) -> None:
        """Ignore later events, which would overwrite the final state."""
        with self._lock:
            self._is_over = True

    def note(self, event: dict[str, Any]) -> None:
        part = self._part_of(event.get("name"))
        if part is None:
            return
        with self._lock:
            if self._is_over:
                return
            batch, at = int(event["batchId"]), str(event["timestamp"])
            if (batch, at) <= self._noted.get(part, (-1, "")):
                return
            self._noted[part] = (batch, at)
            before = self._parts.get(part)
            rows_before, late_before = (before.rows_total, before.late_total) if before is not None else (0, 0)
            violations = {} if before is None else before.violations
            progress = self._parts[part] = progress_of(event, rows_before, late_before, part, violations)
            ordered = [*self._order, *(each for each in self._parts if each not in self._order)]
            self._folder.note_progress(*(self._parts[each] for each in ordered if each in self._parts))
            self._on_progress(progress)

    def _part_of(self, query: str | None) -> str | None:
        """Return the suffix of the query's name after the pipeline's name; None for a foreign query."""
        name = self._folder.name
        if query == name:
            return ""
        return query.removeprefix(f"{name}-") if query is not None and query.startswith(f"{name}-") else None
