"""`moldau serve` as a process, and the requests that its pages send."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

COMMAND = (sys.executable, "-P", "-m", "moldau.cli.main", "serve")
API = "/api/console"
TIMEOUT_S = 30


@contextmanager
def serve(bootstrap: str, *options: str) -> Iterator[str]:
    """Run `moldau serve` on free ports; yield the URL of the console."""
    ready, announce = os.pipe()
    command = [*COMMAND, "-b", bootstrap, "--listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", *options]
    with subprocess.Popen(
        [*command, "--announce-fd", str(announce)], pass_fds=[announce], stdout=subprocess.DEVNULL
    ) as process:
        os.close(announce)
        try:
            with os.fdopen(ready) as lines:
                yield json.loads(lines.readline())["console"]
        finally:
            process.terminate()


class Reply(NamedTuple):
    """A response of the console."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RequestFailed(Exception):
    """A response with an error, which the test did not expect."""


@dataclass
class Browser:
    """Sends requests as the pages do: with cookie and CSRF token."""

    url: str
    cookie: str = ""
    csrf_token: str = ""
    session: dict[str, Any] = field(default_factory=dict)

    def open(self) -> "Browser":
        self.session = self.get("/session")
        self.csrf_token = self.session["csrf_token"] or ""
        return self

    def log_in(self, user: str, password: str) -> "Browser":
        reply = self.send("POST", f"{API}/session", {"user": user, "password": password})
        if reply.status != 200:
            raise RequestFailed(reply.body.decode())
        self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return self.open()

    def get(self, path: str) -> Any:
        return self._expect("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._expect("POST", path, body)

    def put(self, path: str, body: Any) -> Any:
        return self._expect("PUT", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self._expect("PATCH", path, body)

    def delete(self, path: str, body: Any) -> Any:
        return self._expect("DELETE", path, body)

    def read(self, topic: str, **wanted: Any) -> Any:
        return self.post(f"/topics/{topic}/read", wanted)

    def error(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Return status and code of a request that fails."""
        reply = self.send(method, API + path, body)
        return reply.status, reply.json["error"]

    def _expect(self, method: str, path: str, body: Any) -> Any:
        reply = self.send(method, API + path, body)
        if reply.status >= 400:
            raise RequestFailed(f"{method} {path}: {reply.status} {reply.body.decode()}")
        return reply.json

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT_S)
        sent = {"X-CSRF-Token": self.csrf_token, "Cookie": self.cookie, **(headers or {})}
        content = None if body is None else json.dumps(body)
        if content is not None:
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, quote(path, safe="/?&=%"), content, {k: v for k, v in sent.items() if v})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()


def text(content: str) -> dict[str, str]:
    """A key or value of a produced record."""
    return {"text": content}
