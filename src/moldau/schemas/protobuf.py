"""Protobuf: schemas compiled by protoc, in a process of its own, and compared by their descriptors.

A schema is the text of a .proto file or a serialized FileDescriptorProto in base64, as the Python serializer of
confluent-kafka registers it. The files that it imports are its references; those of Protobuf itself are known.
"""

import base64
import binascii
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from moldau.schemas.proto_difference import Comparison, File
from moldau.schemas.proto_text import NotPrintable, print_file
from moldau.schemas.types import Dependencies, InvalidSchema

MAIN: Final = "default.proto"
COMPILE_S_MAX: Final = 20.0
ERROR_CHARS_MAX: Final = 1_000
NAME_CHARS_MAX: Final = 200
# protoc ends the process on some errors and writes to the descriptor of standard error.
COMPILER: Final = (sys.executable, "-P", "-m", "grpc_tools.protoc")


class ProtobufSchema:
    """A compiled file with its dependencies."""

    def __init__(self, text: str, files: dict[str, Any]) -> None:
        self.file: Any = files[MAIN]
        self.files = files
        try:
            self.canonical = print_file(self.file)
        except NotPrintable:
            self.canonical = text

    @property
    def normalized(self) -> str:
        """The canonical form already has one layout."""
        return self.canonical

    @cached_property
    def serialized(self) -> str:
        """The descriptor in base64."""
        return base64.b64encode(self.file.SerializeToString()).decode()

    def incompatibilities(self, earlier: Any) -> list[str]:
        if not isinstance(earlier, ProtobufSchema):
            return ["the earlier schema is not Protobuf"]
        before, after = (File(each.file, each.files) for each in (earlier, self))
        return [str(each) for each in Comparison(before, after).differences()]


def parse(text: str, dependencies: Dependencies) -> ProtobufSchema:
    source = _text_of(text)
    return ProtobufSchema(source.strip() + "\n", _compile(source, {k: _text_of(v) for k, v in dependencies.items()}))


def _text_of(text: str) -> str:
    """Return the text of a schema that may be a descriptor in base64."""
    try:
        encoded = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return text
    try:
        return print_file(descriptor_pb2.FileDescriptorProto.FromString(encoded))
    except (DecodeError, NotPrintable) as error:
        raise InvalidSchema(f"not a descriptor of a file: {error}") from error


def _compile(text: str, dependencies: Dependencies) -> dict[str, Any]:
    if MAIN in dependencies:
        raise InvalidSchema(f"a reference cannot have the name {MAIN}, which is the schema's own")
    with tempfile.TemporaryDirectory(prefix="moldau-proto-") as folder:
        root = Path(folder) / "in"
        for name, content in {**dependencies, MAIN: text}.items():
            path = root / _checked_name(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        output = Path(folder) / "out"
        options = (f"--proto_path={root}", f"--proto_path={_standard_files()}", "--include_imports")
        command = (*COMPILER, *options, f"--descriptor_set_out={output}", str(root / MAIN))
        try:
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_S_MAX, check=False)
        except subprocess.TimeoutExpired as error:
            raise InvalidSchema(f"protoc did not end within {COMPILE_S_MAX:g} s") from error
        if done.returncode != 0:
            reason = _errors_in(done.stderr.decode(errors="replace").replace(f"{root}/", ""))
            raise InvalidSchema(reason[:ERROR_CHARS_MAX] or f"protoc exited with {done.returncode}")
        compiled = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    return {each.name: each for each in compiled.file}


def _errors_in(output: str) -> str:
    """Leave out the warnings of protoc's logging library."""
    lines = output.strip().splitlines()
    return " ".join(each for each in lines if not each.startswith(("WARNING: All log messages", "W0000 ")))


def _checked_name(name: str) -> PurePosixPath:
    """A reference becomes a file: reject names that lead out of the folder."""
    path = PurePosixPath(name)
    is_inside = name and not path.is_absolute() and ".." not in path.parts and name.isprintable()
    if not is_inside or len(name) > NAME_CHARS_MAX or str(path) in ("", "."):
        raise InvalidSchema(f"{name[:80]!r} cannot be imported: a reference has the relative path of a .proto file")
    return path


def _standard_files() -> Path:
    import grpc_tools

    return Path(grpc_tools.__file__).parent / "_proto"
