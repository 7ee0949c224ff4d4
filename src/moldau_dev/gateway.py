"""Requests to the REST gateway of `moldau serve`."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from moldau_dev.console import TIMEOUT_S, Reply


@dataclass(frozen=True)
class Gateway:
    """Sends requests below `/v1`, each on a connection of its own."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.send("POST", path, body, headers)

    def error(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Return status and code of a request that fails."""
        reply = self.send(method, path, body)
        return reply.status, reply.json["error"]

    def records(self, topic: str, query: str = "") -> Any:
        reply = self.get(f"/topics/{topic}/records{query}")
        assert reply.status == 200, reply.body
        return reply.json["records"]

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT_S)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in {**self.headers, **(headers or {})}.items()}
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, f"/v1{path}", content, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()
