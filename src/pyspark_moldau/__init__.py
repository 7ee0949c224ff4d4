"""The Spark data source `format("moldau")`: Spark imports this module and looks up `DefaultSource`.

`pyspark` is imported only then, so that options, offsets and codecs work without it. A script that imports this module
before it creates its session has `format("moldau")` without an activated environment.
"""

from typing import TYPE_CHECKING, Any

from pyspark_moldau.interpreter import prefer_this_interpreter

if TYPE_CHECKING:
    from pyspark_moldau.data_source import MoldauSource as DefaultSource
    from pyspark_moldau.spark_session import session

__all__ = ["DefaultSource", "session"]

prefer_this_interpreter()


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_moldau.data_source import MoldauSource

        return MoldauSource
    if name == "session":
        from pyspark_moldau.spark_session import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
