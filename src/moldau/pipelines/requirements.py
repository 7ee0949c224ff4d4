"""What a pipeline needs beside the broker, and the sentence that is said when it is missing."""

import importlib.util
from typing import Final

NEEDED: Final = ("pyspark", "pyarrow", "pandas", "numpy", "confluent_kafka")


class PipelineError(Exception):
    """Something about a pipeline that the user can put right; the message says what and how."""


def require_spark() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineError(
            f"pipelines need {', '.join(missing)}; install Moldau with its spark extra (docs/install.md)"
        )
