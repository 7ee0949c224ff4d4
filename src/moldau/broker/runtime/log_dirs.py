"""The log dirs of this broker: whether each can be written, and its id in the metadata (KIP-858)."""

from collections.abc import Callable, Iterable, Mapping

from moldau.broker.runtime.log_dir_monitor import LogDirMonitor
from moldau.model.ids import DirectoryId


class LogDirs:
    """One monitor for each log dir that could be opened at the start. Without the dir of the metadata log, no log dir
    can be used: this broker would not learn which replicas it has."""

    def __init__(
        self,
        monitors: Iterable[LogDirMonitor],
        ids: Mapping[str, DirectoryId],
        metadata: LogDirMonitor,
        unopened: Mapping[str, str],
    ) -> None:
        """`ids` are those of the log dirs, by path; `unopened` has the causes of those that cannot be used until the
        next start."""
        self._by_path = {each.folder: each for each in monitors}
        self.ids = ids
        self.metadata = metadata
        self.unopened = unopened
        self._all = [*self._by_path.values()]
        if metadata not in self._all:
            self._all.append(metadata)

    @property
    def monitors(self) -> list[LogDirMonitor]:
        """The monitors of all directories in use, that of the metadata log included."""
        return self._all

    @property
    def paths(self) -> list[str]:
        """The log dirs that could be opened, in the order of `log.dirs`."""
        return list(self._by_path)

    def of(self, folder: str) -> LogDirMonitor:
        """The monitor of the log dir that has this folder of a log."""
        return self._by_path.get(path_of(folder), self.metadata)

    def id_of(self, folder: str) -> DirectoryId | None:
        """The id of the log dir that has this folder of a log."""
        return self.ids.get(path_of(folder))

    def is_online(self, path: str) -> bool:
        """Whether this log dir can be written."""
        monitor = self._by_path.get(path)
        return self.metadata.is_online and monitor is not None and monitor.is_online

    def is_assignment_online(self, directory: bytes) -> bool:
        """Whether the log dir with this id can be written; for any other id, whether all can."""
        for path, each in self.ids.items():
            if each == directory:
                return self.is_online(path)
        return self.are_all_online

    @property
    def are_all_online(self) -> bool:
        """Whether all log dirs that could be opened can be written."""
        return all(each.is_online for each in self._all)

    @property
    def is_several(self) -> bool:
        """Whether the failure of a log dir may leave others."""
        return len(self._all) > 1

    @property
    def offline_ids(self) -> list[DirectoryId]:
        """The ids of the log dirs that cannot be written."""
        return [directory for path, directory in self.ids.items() if not self.is_online(path)]

    @property
    def offline(self) -> list[tuple[str, str, str]]:
        """Path, cause and remedy of each directory that cannot be used."""
        failed = [(each.folder, each.cause, each.remedy) for each in self._all if not each.is_online]
        remedy = "repair it, or remove it from log.dirs, and restart the broker"
        return failed + [(path, cause, remedy) for path, cause in self.unopened.items()]

    def when_changed(self, call: Callable[[], None]) -> None:
        """Call back after each log dir that went offline or online."""
        for each in self._all:
            each.listeners.append(call)

    async def close(self) -> None:
        for each in self._all:
            await each.close()


def path_of(folder: str) -> str:
    """The log dir of a log's folder."""
    return folder.rpartition("/")[0]
