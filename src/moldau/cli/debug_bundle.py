"""The contents of `moldau debug bundle`: what describes a cluster's state, without records and without secrets.

Every part is collected by itself: one that fails is named in manifest.json, and the others are still written. Settings
come from the brokers, which hide passwords; local settings files are not read. Log lines are cut after words such as
`password`. Each part, and their number, is bounded.
"""

import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from moldau import __version__
from moldau.cli.secrets import HIDDEN, SECRET_WORD, is_secret
from moldau.client.async_client import AsyncClient
from moldau.client.groups import Groups
from moldau.client.types import ConfigEntry, Resource, ResourceKind
from moldau.model.errors import KafkaError
from moldau.model.units import MiB

PART_BYTES_MAX: Final = 8 * MiB
PARTS_MAX: Final = 200  # metrics pages and log files, mostly
TOPICS_MAX: Final = 10_000
METRICS_TIMEOUT_S: Final = 10
CUT_NOTE: Final = b"[only the end of the file]\n"
EXPECTED: Final = (KafkaError, OSError, ValueError)
# What follows such a word, in properties, JSON, logfmt or a command line, up to the end of the line.
_ASSIGNMENT: Final = re.compile(
    rf"({SECRET_WORD.pattern}[\w.-]{{0,64}}[\"']?(?:[ \t]{{0,8}}[=:][ \t]{{0,8}}|[ \t]{{1,8}}))\S.*", re.IGNORECASE
)
_AUTHORIZATION: Final = re.compile(r"(\b(?:bearer|basic)[ \t]{1,8})\S+", re.IGNORECASE)
_KEY_BEGIN: Final = "-----BEGIN "
_KEY_END: Final = "-----END "
_KEY: Final = re.compile(rf"{_KEY_BEGIN}.*?(?:{_KEY_END}[^\n]*|\Z)", re.DOTALL)
_USER_IN_URL: Final = re.compile(r"(://)[^/\s:@]{1,256}:[^/\s@]{1,256}@")


def redact(text: str) -> str:
    """Hide what may be a secret. Too much is hidden rather than too little."""
    begin, end = text.find(_KEY_BEGIN), text.find(_KEY_END)
    if end >= 0 and (begin < 0 or end < begin):  # the text begins within a key
        text = HIDDEN + text[end:]
    text = _KEY.sub(HIDDEN, text)
    text = _USER_IN_URL.sub(rf"\1{HIDDEN}@", text)
    text = _AUTHORIZATION.sub(rf"\1{HIDDEN}", text)
    return _ASSIGNMENT.sub(rf"\1{HIDDEN}", text)


def end_of_log(path: Path) -> bytes:
    """Return the last lines of a log file, redacted."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - PART_BYTES_MAX))
        tail = file.read(PART_BYTES_MAX)
    if size > PART_BYTES_MAX:
        tail = CUT_NOTE + tail.partition(b"\n")[2]
    return redact(tail.decode(errors="replace")).encode()


@dataclass(slots=True)
class DebugBundle:
    """Collects the parts. `at` is the time that the manifest shows."""

    client: AsyncClient
    at: str
    metrics: tuple[str, ...] = ()
    logs: tuple[Path, ...] = ()
    parts: dict[str, bytes] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    async def collect(self) -> None:
        await self._add("cluster.json", self._cluster)
        await self._add("topics.json", self._topics)
        await self._add("groups.json", self._groups)
        await self._add("brokers.json", self._brokers)
        for number, url in enumerate(self.metrics, 1):
            await self._add(f"metrics/{number}.txt", partial(_page, url))
        for number, path in enumerate(self.logs, 1):
            await self._add(f"logs/{number}-{path.name}", partial(_log, path))
        self.parts["manifest.json"] = _as_json(self._manifest())

    def write(self, path: Path) -> int:
        """Write the archive, which only its owner may read; return its size. An existing file is an error."""
        with (
            open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, content in sorted(self.parts.items()):
                member = tarfile.TarInfo(f"moldau-debug/{name}")
                member.size, member.mode = len(content), 0o600
                archive.addfile(member, io.BytesIO(content))
        return path.stat().st_size

    async def _add(self, name: str, part: Callable[[], Awaitable[Any]]) -> None:
        if len(self.parts) >= PARTS_MAX:
            self.errors[name] = f"left out: a bundle has at most {PARTS_MAX} parts"
            return
        try:
            found = await part()
        except EXPECTED as error:
            self.errors[name] = redact(str(error) or type(error).__name__)
            return
        content = found if isinstance(found, bytes) else _as_json(found)
        if len(content) > PART_BYTES_MAX + len(CUT_NOTE):
            self.errors[name] = f"left out: {len(content)} bytes, the limit is {PART_BYTES_MAX}"
        else:
            self.parts[name] = content

    def _manifest(self) -> dict[str, Any]:
        return {
            "created": self.at,
            "moldau": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": dict(sorted((each.name, each.version) for each in distributions())),
            "parts": {name: len(content) for name, content in sorted(self.parts.items())},
            "metrics": [redact(url) for url in self.metrics],
            "logs": [str(path) for path in self.logs],
            "errors": self.errors,
        }

    async def _cluster(self) -> dict[str, Any]:
        from moldau.cli.clusters import health_as_json
        from moldau.client.health import check_health

        return health_as_json(await check_health(self.client))

    async def _topics(self) -> list[dict[str, Any]]:
        topics = await self.client.describe_topics()
        if len(topics) > TOPICS_MAX:
            self.errors["topics.json"] = f"only {TOPICS_MAX} of {len(topics)} topics"
        return [
            {
                "name": topic.name,
                "partitions": [
                    {"leader": each.leader, "epoch": each.leader_epoch, "replicas": each.replicas, "isr": each.isr}
                    for each in topic.partitions
                ],
            }
            for topic in topics[:TOPICS_MAX]
        ]

    async def _groups(self) -> dict[str, Any]:
        found, failures = await Groups(self.client).list_reachable()
        return {
            "groups": [{"id": each.group, "state": each.state, "protocol": each.protocol} for each in found],
            "failures": {str(node): redact(str(error)) for node, error in failures.items()},
        }

    async def _brokers(self) -> dict[str, Any]:
        described: dict[str, Any] = {}
        for broker in (await self.client.describe_cluster()).brokers:
            try:
                resource = Resource(ResourceKind.BROKER, str(broker.node_id))
                described[str(broker.node_id)] = _settings(await self.client.describe_configs(resource))
            except EXPECTED as error:
                described[str(broker.node_id)] = {"error": redact(str(error))}
        return described


def _settings(entries: Iterable[ConfigEntry]) -> dict[str, Any]:
    """Return what is not a default; the value of a sensitive setting is hidden whatever the broker sent."""
    return {
        each.name: {
            "value": HIDDEN if each.is_sensitive or is_secret(each.name) else each.value,
            "source": each.source_name,
        }
        for each in entries
        if not each.is_default
    }


async def _page(url: str) -> bytes:
    with urlopen(url, timeout=METRICS_TIMEOUT_S) as response:
        page: bytes = response.read(PART_BYTES_MAX)
    return page


async def _log(path: Path) -> bytes:
    return end_of_log(path)


def _as_json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()
