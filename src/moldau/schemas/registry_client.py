"""A client of a schema registry with Confluent's API, for programs that may block: the command line and Spark.

The settings have the names of Confluent's clients: `basic.auth.user.info` (`USER:PASSWORD`), `bearer.auth.token`, and
`ssl.ca.location` of a PEM file, each also with the prefix `schema.registry.`.
"""

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

from moldau.schemas.codecs import RegisteredSchema
from moldau.schemas.types import AVRO

TIMEOUT_S: Final = 30.0
RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
DEPENDENCIES_MAX: Final = 1_000
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
PREFIX: Final = "schema.registry."
USER_INFO: Final = "basic.auth.user.info"
TOKEN: Final = "bearer.auth.token"
CA_FILE: Final = "ssl.ca.location"


class RegistryUnavailable(Exception):
    """A registry that does not respond, or whose response is no registry's; the message names its address."""


class RequestRejected(Exception):
    """An error of the registry; the message says what was requested."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RegistryClient:
    """Requests to one of several registries: the next one if one does not respond."""

    def __init__(self, urls: str, settings: Mapping[str, str] | None = None) -> None:
        found = settings or {}
        chosen = {name: found.get(PREFIX + name) or found.get(name, "") for name in (USER_INFO, TOKEN, CA_FILE)}
        self._urls = [each.strip().rstrip("/") for each in urls.split(",") if each.strip()]
        if invalid := [each for each in self._urls if urlsplit(each).scheme not in ("http", "https")]:
            raise ValueError(f"{invalid[0]} is not the URL of a registry, such as http://127.0.0.1:8081")
        if not self._urls:
            raise ValueError("the URL of the registry is empty")
        self._tls = ssl.create_default_context(cafile=chosen[CA_FILE] or None)
        self._headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
        if chosen[USER_INFO]:
            self._headers["Authorization"] = f"Basic {base64.b64encode(chosen[USER_INFO].encode()).decode()}"
        elif chosen[TOKEN]:
            self._headers["Authorization"] = f"Bearer {chosen[TOKEN]}"

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return a schema by id."""
        return self._registered(schema_id, self._get(f"/schemas/ids/{schema_id}"))

    def version(self, subject: str, version: str = "latest") -> RegisteredSchema:
        """Return a version of a subject."""
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        return self._registered(found["id"], found)

    def register(self, subject: str, kind: str, text: str) -> RegisteredSchema:
        """Register a schema without references, unless the subject has it already."""
        body = {"schema": text, **({} if kind == AVRO else {"schemaType": kind})}
        found = self._send("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        return RegisteredSchema(found["id"], kind, text)

    def _registered(self, schema_id: int, found: Mapping[str, Any]) -> RegisteredSchema:
        dependencies: dict[str, str] = {}
        self._collect(found.get("references") or (), dependencies, set())
        return RegisteredSchema(schema_id, found.get("schemaType", AVRO), found["schema"], dependencies)

    def _collect(self, references: Sequence[Mapping[str, Any]], found: dict[str, str], open_names: set[str]) -> None:
        for each in references:
            name = each["name"]
            if name in found or name in open_names:
                continue
            if len(open_names) >= DEPENDENCIES_MAX:
                raise RegistryUnavailable(f"the schema has more than {DEPENDENCIES_MAX} references")
            open_names.add(name)
            subject = quote(each["subject"], safe="")
            target = self._get(f"/subjects/{subject}/versions/{each['version']}?deleted=true")
            self._collect(target.get("references") or (), found, open_names)
            found[name] = target["schema"]

    def _get(self, path: str) -> Any:
        return self._send("GET", path, None)

    def _send(self, method: str, path: str, body: Any) -> Any:
        content = None if body is None else json.dumps(body).encode()
        failure: Exception | None = None
        for url in list(self._urls):
            request = urllib.request.Request(f"{url}{path}", content, self._headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as response:
                    return json.loads(response.read(RESPONSE_BYTES_MAX))
            except urllib.error.HTTPError as error:
                with error:
                    if error.code < 500:
                        raise _rejection(error, url, path) from None
                failure = error
            except (OSError, ValueError) as error:
                failure = error
            self._urls.append(self._urls.pop(0))  # the next request begins with one that may respond
        raise RegistryUnavailable(f"the schema registry at {', '.join(self._urls)} does not respond: {failure}")


def _rejection(error: urllib.error.HTTPError, url: str, path: str) -> RequestRejected:
    try:
        found = json.loads(error.read(RESPONSE_BYTES_MAX))
        return RequestRejected(int(found["error_code"]), f"{found['message']} ({url}{path})")
    except (ValueError, KeyError, TypeError, OSError):
        return RequestRejected(error.code, f"{url}{path}: HTTP {error.code} {error.reason}")
