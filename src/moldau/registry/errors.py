"""Errors of the registry, with Confluent's codes and HTTP statuses."""

from typing import Final

UNAUTHORIZED: Final = 40101
FORBIDDEN: Final = 40301
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
NO_SUBJECT_COMPATIBILITY: Final = 40408
NO_SUBJECT_MODE: Final = 40409
INCOMPATIBLE: Final = 409
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_COMPATIBILITY: Final = 42203
INVALID_MODE: Final = 42204
OPERATION_NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
ID_MISMATCH: Final = 42207
INVALID_SUBJECT: Final = 42208
STORE_FAILED: Final = 50001
STORE_TIMED_OUT: Final = 50002


class RegistryError(Exception):
    """An error for the client. The first three digits of a five-digit code are its HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def status(self) -> int:
        return self.code if self.code < 1_000 else self.code // 100


def unauthorized(reason: str) -> RegistryError:
    return RegistryError(UNAUTHORIZED, f"Unauthorized: {reason}")


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RegistryError:
    return RegistryError(VERSION_NOT_FOUND, f"Version {version} not found.")


def schema_not_found(schema_id: int | None = None) -> RegistryError:
    what = "Schema" if schema_id is None else f"Schema {schema_id}"
    return RegistryError(SCHEMA_NOT_FOUND, f"{what} not found")


def invalid_schema(reason: str) -> RegistryError:
    return RegistryError(INVALID_SCHEMA, f"Invalid schema: {reason}")
