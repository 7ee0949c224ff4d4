"""Sessions as the rest of the tests have them: what their Python processes are."""

from typing import Any

import pyspark


def test_python_workers_use_the_installed_pyspark(spark: Any) -> None:
    """Not the one in a zip, which each of them would compile anew."""

    def place(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(place).collect() == [pyspark.__file__]
