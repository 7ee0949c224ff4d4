"""The rule that clocks, randomness, threads, files and sockets are used only behind ports."""

import ast
from collections.abc import Iterator

from house.source import Finding, Source

# Code that may use them directly: the real ports, the simulated ones, command-line programs, the HTTP interfaces (a
# process of their own) with their schemas, the Python API (in programs of users), and Spark's processes, which have no
# ports; but not the codec and the options of the Spark data source.
EXEMPT_PACKAGES = (
    "api/",
    "node/ports/",
    "testing/",
    "cli/",
    "console/",
    "pipelines/",
    "registry/",
    "schemas/",
    "web/",
    "__main__.py",
    "pyspark_moldau/source/",
    "pyspark_moldau/schemas/",
    "pyspark_moldau/sink/",
    "pyspark_moldau/interpreter.py",
    "pyspark_moldau/java.py",
    "pyspark_moldau/package_archive.py",
    "pyspark_moldau/spark_session.py",
)

PORT_MODULES = frozenset(
    "concurrent fcntl glob mmap multiprocessing os pathlib queue random sched secrets select selectors shutil socket "
    "socketserver ssl subprocess tempfile threading time urllib http".split()
)
# Files that may use one of the modules, with the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("node/run.py", "os"): "reads the pipe by which the parent process stops this one",
    ("pyspark_moldau/options/sink_options.py", "pathlib.Path"): "the default staging directory",
    ("pyspark_moldau/options/sink_options.py", "tempfile"): "the default staging directory",
    ("records/compression.py", "mmap"): "anonymous memory, of which a codec touches only what it fills",
}
# Parts of those modules without side effects.
HARMLESS = frozenset({"os.PathLike", "os.strerror", "pathlib.PurePath", "pathlib.PurePosixPath", "urllib.parse"})
PORT_NAMES = frozenset(
    "datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today uuid.uuid1 uuid.uuid4 "
    "asyncio.to_thread asyncio.open_connection asyncio.start_server asyncio.open_unix_connection "
    "asyncio.start_unix_server asyncio.create_subprocess_exec asyncio.create_subprocess_shell io.open".split()
)
# Methods of an event loop, whatever the loop is called.
PORT_METHODS = frozenset(
    "run_in_executor create_server create_connection create_unix_server create_unix_connection "
    "create_datagram_endpoint sock_accept sock_connect sock_recv sock_recv_into sock_sendall sock_sendfile "
    "subprocess_exec subprocess_shell".split()
)


def bypasses_ports(source: Source) -> Iterator[Finding]:
    """Product code uses time, randomness, files, threads and sockets through ports."""
    if not source.place or source.place.startswith(EXEMPT_PACKAGES):
        return
    names = _imported_names(source)
    for node in source.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _port_imports(source, node)
        elif isinstance(node, ast.Call):
            yield from _port_call(source, node, names)


def _port_imports(source: Source, node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
    for alias in node.names:
        name = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        if not getattr(node, "level", 0) and _needs_port(name) and (source.place, name) not in EXCEPTIONS:
            yield source.finding(node, f"{name} belongs behind a port (moldau.model.ports)")


def _needs_port(name: str) -> bool:
    is_harmless = any(name == harmless or name.startswith(f"{harmless}.") for harmless in HARMLESS)
    return name in PORT_NAMES or (name.split(".")[0] in PORT_MODULES and not is_harmless)


def _port_call(source: Source, node: ast.Call, names: dict[str, str]) -> Iterator[Finding]:
    match node.func:
        case ast.Name(id="open"):
            yield source.finding(node, "open() belongs behind the Disk port")
        case ast.Attribute(attr=attr) if attr in PORT_METHODS:
            yield source.finding(node, f".{attr}() belongs behind a port")
        case ast.Attribute() as function:
            name = _full_name(function, names)
            if name in PORT_NAMES:
                yield source.finding(node, f"{name} belongs behind a port")


def _imported_names(source: Source) -> dict[str, str]:
    """Map each imported name to its full name: `dt` → `datetime`."""
    names: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=value, attr=attr):
            return f"{_full_name(value, names)}.{attr}"
        case _:
            return ""
