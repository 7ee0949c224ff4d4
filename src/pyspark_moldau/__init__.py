"""The Spark data source `format("moldau")`: Spark imports this module by its name and asks it for `DefaultSource`.

`pyspark` is loaded only then, so that options, offsets and decoding can be used, and tested, without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_moldau.sessions import session
    from pyspark_moldau.source import MoldauSource as DefaultSource

__all__ = ["DefaultSource", "session"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_moldau.source import MoldauSource

        return MoldauSource
    if name == "session":
        from pyspark_moldau.sessions import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
