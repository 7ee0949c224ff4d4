"""Errors of the cluster and of requests, as HTTP responses: `{"error": code, "message": text}`."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from moldau.model.errors import ErrorCode, KafkaError
from moldau.web.schema_service import SchemaRequestFailed

_STATUS: Final[dict[ErrorCode, int]] = {
    **dict.fromkeys(
        (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ErrorCode.SECURITY_DISABLED,
        ),
        403,
    ),
    **dict.fromkeys(
        (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.RESOURCE_NOT_FOUND,
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            ErrorCode.BROKER_NOT_AVAILABLE,
        ),
        404,
    ),
    **dict.fromkeys(
        (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NON_EMPTY_GROUP, ErrorCode.REASSIGNMENT_IN_PROGRESS), 409
    ),
    **dict.fromkeys(
        (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_CONFIG,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_TIMESTAMP,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
        400,
    ),
    **dict.fromkeys(
        (
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ),
        503,
    ),
    **dict.fromkeys((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE), 413),
    ErrorCode.SASL_AUTHENTICATION_FAILED: 401,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
    ErrorCode.UNSUPPORTED_VERSION: 501,
}
BAD_GATEWAY: Final = 502
UNAVAILABLE: Final = 503
RETRY_AFTER: Final = {"Retry-After": "1"}  # of 429 and 503, unless the error says otherwise


class ConsoleError(Exception):
    """An error of a request to the console itself."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, dict(headers or {})


EXPECTED: Final = (
    ConsoleError,
    SchemaRequestFailed,
    KafkaError,
    ConnectionError,
    TimeoutError,
    OSError,
    RequestValidationError,
)


def error_response(error: Exception) -> JSONResponse:
    """Return the response of one of the `EXPECTED` errors."""
    if isinstance(error, RequestValidationError):
        return JSONResponse({"error": "invalid_request", "message": _validation_text(error.errors())}, 422)
    status, code = status_and_code(error)
    message = error.message if isinstance(error, KafkaError) else str(error) or type(error).__name__
    headers = dict(RETRY_AFTER) if status in (429, UNAVAILABLE) else {}
    if isinstance(error, ConsoleError):
        headers |= error.headers
    return JSONResponse({"error": code, "message": message}, status, headers)


def error_json(error: Exception) -> dict[str, str]:
    """Return an error as a part of a response that otherwise succeeded."""
    _, code = status_and_code(error)
    return {"error": code, "message": error.message if isinstance(error, KafkaError) else str(error)}


def status_and_code(error: Exception) -> tuple[int, str]:
    if isinstance(error, ConsoleError):
        return error.status, error.code
    if isinstance(error, SchemaRequestFailed):
        return error.status, f"registry_{error.code}"
    if isinstance(error, KafkaError):
        return _STATUS.get(error.code, BAD_GATEWAY), error.code.name.lower()
    return UNAVAILABLE, "unreachable"


def add_error_handlers(app: FastAPI) -> None:
    """Turn errors of routes into responses."""

    def respond(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    def fail(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": f"http_{error.status_code}", "message": str(error.detail)}, error.status_code)

    for kind in EXPECTED:
        app.add_exception_handler(kind, respond)
    app.add_exception_handler(HTTPException, fail)


def _validation_text(errors: Any) -> str:
    parts = (f"{'.'.join(map(str, each['loc'][1:])) or 'body'}: {each['msg']}" for each in list(errors)[:5])
    return "; ".join(parts)
