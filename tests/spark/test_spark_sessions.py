"""Sessions as the rest of the tests have them: what their Python processes are."""

from typing import Any

import pyspark


def test_python_processes_of_spark_take_the_pyspark_that_is_installed(spark: Any) -> None:
    """Not the one in a zip, which each of them would compile anew."""

    def place(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(place).collect() == [pyspark.__file__]
