"""The C program on librdkafka: compiled once, against the library that confluent-kafka's wheel brings."""

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moldau.cli.errors import CommandError

SOURCE: Final = Path(__file__).with_name("client.c")
RUN_S_MAX: Final = 120.0


def build(folder: Path) -> Path:
    """Compile the program into a folder; return its path."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise CommandError("the rows of librdkafka need a C compiler. On Debian or Ubuntu: apt install gcc")
    program = folder / "librdkafka-client"
    library = _library()
    command = [compiler, "-O2", "-o", str(program), str(SOURCE), str(library), f"-Wl,-rpath,{library.parent}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"the client on librdkafka does not compile: {done.stderr[-1000:]}")
    return program


def _library() -> Path:
    found = importlib.util.find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise CommandError("the rows of librdkafka need confluent-kafka: pip install confluent-kafka")
    folder = Path(found.origin).parent.with_name("confluent_kafka.libs")
    libraries = sorted(folder.glob("librdkafka-*.so*"))
    if not libraries:
        raise CommandError(f"there is no librdkafka in {folder}: install confluent-kafka from its wheel")
    return libraries[0]


def run(program: Path, mode: str, servers: str, topic: str, *numbers: float) -> Mapping[str, float]:
    command = [str(program), mode, servers, topic, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    if done.returncode:
        raise CommandError(f"the client on librdkafka failed: {done.stderr[-500:]}")
    found: Mapping[str, float] = json.loads(done.stdout)
    return found
