"""The endpoints by path and method, with the operation on the topic of a subject that each needs."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from moldau.client.acls import Operation
from moldau.registry import endpoints
from moldau.registry.access import topic_of
from moldau.registry.endpoints import Call
from moldau.registry.state import reference_subject

Endpoint = Callable[[Call], Awaitable[Any]]


class EndpointRow(NamedTuple):
    path: str
    methods: dict[str, tuple[Endpoint, Operation | None]]  # the operation that the topic of the subject must permit


DESCRIBE, WRITE, DELETE, ALTER = Operation.DESCRIBE, Operation.WRITE, Operation.DELETE, Operation.ALTER_CONFIGS
# Without a subject in the path, ALTER is that of the cluster, and endpoints leave out what may not be described.
ENDPOINTS: Final = [
    EndpointRow("/", {"GET": (endpoints.show_root, None)}),
    EndpointRow("/contexts", {"GET": (endpoints.list_contexts, None)}),
    EndpointRow("/schemas", {"GET": (endpoints.list_schemas, None)}),
    EndpointRow("/schemas/types", {"GET": (endpoints.list_types, None)}),
    EndpointRow("/schemas/ids/{id}", {"GET": (endpoints.show_schema, None)}),
    EndpointRow("/schemas/ids/{id}/schema", {"GET": (endpoints.show_schema_text, None)}),
    EndpointRow("/schemas/ids/{id}/subjects", {"GET": (endpoints.list_subjects_of_id, None)}),
    EndpointRow("/schemas/ids/{id}/versions", {"GET": (endpoints.list_versions_of_id, None)}),
    EndpointRow("/subjects", {"GET": (endpoints.list_subjects, None)}),
    EndpointRow(
        "/subjects/{subject}",
        {"POST": (endpoints.look_up, DESCRIBE), "DELETE": (endpoints.delete_subject, DELETE)},
    ),
    EndpointRow(
        "/subjects/{subject}/versions",
        {"GET": (endpoints.list_versions, DESCRIBE), "POST": (endpoints.register, WRITE)},
    ),
    EndpointRow(
        "/subjects/{subject}/versions/{version}",
        {"GET": (endpoints.show_version, DESCRIBE), "DELETE": (endpoints.delete_version, DELETE)},
    ),
    EndpointRow("/subjects/{subject}/versions/{version}/schema", {"GET": (endpoints.show_version_text, DESCRIBE)}),
    EndpointRow("/subjects/{subject}/versions/{version}/referencedby", {"GET": (endpoints.list_referrers, DESCRIBE)}),
    EndpointRow("/compatibility/subjects/{subject}/versions", {"POST": (endpoints.check_all, DESCRIBE)}),
    EndpointRow("/compatibility/subjects/{subject}/versions/{version}", {"POST": (endpoints.check_version, DESCRIBE)}),
    *(
        EndpointRow(
            path,
            {
                "GET": (endpoints.show_config, DESCRIBE),
                "PUT": (endpoints.set_config, ALTER),
                "DELETE": (endpoints.delete_config, ALTER),
            },
        )
        for path in ("/config", "/config/{subject}")
    ),
    *(
        EndpointRow(
            path,
            {
                "GET": (endpoints.show_mode, DESCRIBE),
                "PUT": (endpoints.set_mode, ALTER),
                "DELETE": (endpoints.delete_mode, ALTER),
            },
        )
        for path in ("/mode", "/mode/{subject}")
    ),
    EndpointRow("/v1/metadata/id", {"GET": (endpoints.show_cluster_id, None)}),
    EndpointRow("/v1/metadata/version", {"GET": (endpoints.show_release, None)}),
]


async def authorize(call: Call, operation: Operation) -> None:
    """Check the subject in the path, and the subjects that the schema in the body refers to."""
    subject = call.optional_subject
    if subject is not None and topic_of(subject):
        await call.access.check([subject], operation)
    elif operation is not DESCRIBE:  # settings of a context or of all subjects, which every user may read
        await call.access.check_cluster()
    if "schema" in call.body:
        references = call.schema().references
        subjects = {reference_subject(subject or "", each) for each in references}
        await call.access.check(sorted(subjects), DESCRIBE)


def find_endpoint(method: str, path: str) -> tuple[Endpoint, Mapping[str, str], Operation | None] | None:
    """Return the endpoint of a path whose segments are encoded, the names in the path, and the operation it needs."""
    for pattern, methods in _PATTERNS:
        found = pattern.fullmatch(path)
        if found is not None and method in methods:
            endpoint, operation = methods[method]
            return endpoint, found.groupdict(), operation
    return None


_PATTERNS: Final = [(re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", each.path)), each.methods) for each in ENDPOINTS]
