"""The package archive that is sent to executors can be imported there."""

import subprocess
import sys

from pyspark_moldau.package_archive import build_package_archive

PROGRAM = """
import pyspark_moldau.codec.decoder, pyspark_moldau.source.raw_fetcher, pyspark_moldau.source.librdkafka_consumer
from moldau.wire.messages import FetchRequest
print(pyspark_moldau.__file__)
"""


def test_package_archive_suffices_to_read_on_an_executor() -> None:
    archive = build_package_archive()
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}){PROGRAM}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.startswith(str(archive))
