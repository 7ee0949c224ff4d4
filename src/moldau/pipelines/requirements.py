"""The optional packages that pipelines need, and the error if one is missing."""

import importlib.util
from typing import Final

NEEDED: Final = ("pyspark", "pyarrow", "pandas", "numpy", "confluent_kafka")


class PipelineError(Exception):
    """An error that the user can fix; the message says how."""


def require_spark() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineError(
            f"pipelines need {', '.join(missing)}; install Moldau with its spark extra (docs/install.md)"
        )
