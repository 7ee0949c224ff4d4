"""Sessions and their Python workers."""

from typing import Any

import pyspark


def test_python_workers_use_the_installed_pyspark(spark: Any) -> None:
    """Not the zipped one, which each worker would compile again."""

    def place(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(place).collect() == [pyspark.__file__]
