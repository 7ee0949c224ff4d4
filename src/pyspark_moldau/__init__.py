"""The Spark data source `format("moldau")`: Spark imports this module and looks up `DefaultSource`.

`pyspark` is imported only then, so that options, offsets and codecs work without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_moldau.data_source import MoldauSource as DefaultSource
    from pyspark_moldau.spark_session import session

__all__ = ["DefaultSource", "session"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_moldau.data_source import MoldauSource

        return MoldauSource
    if name == "session":
        from pyspark_moldau.spark_session import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
