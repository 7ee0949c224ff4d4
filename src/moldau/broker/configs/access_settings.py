"""Settings of authorization: the authorizer, super users, and the audit log."""

from dataclasses import dataclass

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.model.settings import setting
from moldau.model.units import MiB


def _standard(text: str) -> str | None:
    return None if text in ("", STANDARD_AUTHORIZER) else f"the only authorizer is {STANDARD_AUTHORIZER}"


def _super_users(text: str) -> str | None:
    for each in parse_super_users(text):
        if ":" not in each:
            return f"{each} is not of the form principalType:principalName, such as User:admin"
    return None


def parse_super_users(text: str) -> frozenset[str]:
    """Return the principals in a list that semicolons separate: distinguished names contain commas."""
    return frozenset(each.strip() for each in text.split(";") if each.strip())


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Authorization, and its audit log."""

    authorizer_class_name: str = setting(
        "authorizer.class.name",
        "",
        check=_standard,
        doc=f"The authorizer: {STANDARD_AUTHORIZER}, which decides by ACLs; without it all is allowed.",
    )
    super_users: str = setting(
        "super.users",
        "",
        check=_super_users,
        doc="Principals that may do everything, such as User:admin;User:broker, separated by semicolons.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found",
        False,
        doc="Whether a resource that no ACL names is open to all clients, instead of to super users only.",
    )
    audit_log_path: str = setting(
        "moldau.audit.log.path",
        "audit.jsonl",
        doc="The file of the audit log, relative to the data directory; empty writes none.",
    )
    audit_log_allowed: bool = setting(
        "moldau.audit.log.allowed",
        False,
        doc="Also record operations that are allowed; a repeated request on a fast path is recorded once.",
    )
    audit_log_max_bytes: int = setting(
        "moldau.audit.log.max.bytes",
        16 * MiB,
        at_least=4096,
        doc="The audit log is rotated when it would exceed this size.",
    )
    audit_log_files: int = setting(
        "moldau.audit.log.files",
        5,
        at_least=1,
        at_most=1000,
        doc="How many files of the audit log are kept, with the current one.",
    )
    audit_log_lines_per_second: int = setting(
        "moldau.audit.log.lines.per.second",
        100,
        at_least=1,
        doc="At most this many lines per second on average; the next line counts those that were left out.",
    )
