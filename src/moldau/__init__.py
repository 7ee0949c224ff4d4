"""Moldau: a distributed commit log that speaks the Kafka protocol.

`moldau.connect("localhost:9092")` is the small Python API; see `moldau.api`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.api import connect as connect

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:  # the broker does not need the client library that the API stands on
    if name != "connect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from moldau.api import connect
    except ModuleNotFoundError as missing:
        if missing.name != "confluent_kafka":
            raise
        raise ModuleNotFoundError("moldau.connect needs confluent-kafka: pip install confluent-kafka") from missing
    return connect
