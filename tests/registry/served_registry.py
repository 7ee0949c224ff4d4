"""A registry as a process of its own, and a small client for its API."""

import base64
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class Response(NamedTuple):
    """A response: the status, the parsed body, and the content type."""

    status: int
    body: Any
    content_type: str

    @property
    def code(self) -> int:
        return int(self.body["error_code"])


class RegistryClient:
    """Sends requests to one registry."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, credentials: str = "") -> None:
        self.url, self._tls, self._credentials = url, tls, credentials

    def as_user(self, credentials: str, tls: ssl.SSLContext | None = None) -> "RegistryClient":
        """Return a client that sends `user:password`."""
        return RegistryClient(self.url, tls, credentials)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": CONTENT_TYPE, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self._credentials:
            sent["Authorization"] = f"Basic {base64.b64encode(self._credentials.encode()).decode()}"
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._tls) as reply:
                return Response(reply.status, json.loads(reply.read()), reply.headers["content-type"])
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, json.loads(error.read()), error.headers["content-type"])

    def get(self, path: str) -> Response:
        return self.call("GET", path)

    def delete(self, path: str) -> Response:
        return self.call("DELETE", path)

    def put(self, path: str, **body: Any) -> Response:
        return self.call("PUT", path, body)

    def register(self, subject: str, schema: str, *, query: str = "", **fields: Any) -> Response:
        return self.call("POST", f"/subjects/{quote(subject, '')}/versions{query}", {"schema": schema, **fields})

    def look_up(self, subject: str, schema: str, *, query: str = "", **fields: Any) -> Response:
        return self.call("POST", f"/subjects/{quote(subject, '')}{query}", {"schema": schema, **fields})

    def check(self, subject: str, schema: str, version: str = "latest", **fields: Any) -> Response:
        path = f"/compatibility/subjects/{quote(subject, '')}/versions/{version}?verbose=true"
        return self.call("POST", path, {"schema": schema, **fields})


@contextmanager
def served_registry(bootstrap: str, *options: str) -> Iterator[tuple[RegistryClient, "subprocess.Popen[str]"]]:
    """Run `moldau serve` on free ports."""
    ports = ("--listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0")
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "serve", "-b", bootstrap, *ports, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            urls = dict(each.split() for each in lines[1:])
            yield RegistryClient(urls["registry"]), process
        finally:
            process.kill()


def record(name: str, **fields: Any) -> str:
    """An Avro record with fields of these types; a type that is a tuple has a default."""
    shown = [
        {"name": each, "type": kind[0], "default": kind[1]} if isinstance(kind, tuple) else {"name": each, "type": kind}
        for each, kind in fields.items()
    ]
    return json.dumps({"type": "record", "name": name, "fields": shown})
