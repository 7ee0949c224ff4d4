"""The schema tables: their origin, contents and loading time."""

import importlib.util
import io
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from wire_samples import Samples, every_api_message

from moldau.wire import codec, messages
from moldau.wire.catalogue import APIS, ENTRIES, read_table, schema_of
from moldau.wire.schema import NEVER, Field, Schema, Versions, parse_schemas

GENERATOR = Path(__file__).parents[2] / "tools" / "generate_wire.py"

# The versions that a broker serves, as (key, oldest, newest). Produce is advertised from 0 and served from 3.
WANTED = [
    (0, 3, 13), (1, 4, 18), (2, 1, 10), (3, 0, 13), (8, 2, 10), (9, 1, 10), (10, 0, 6), (11, 0, 9), (12, 0, 4),
    (13, 0, 5), (14, 0, 5), (15, 0, 6), (16, 0, 5), (17, 0, 1), (18, 0, 4), (19, 2, 7), (20, 1, 6), (21, 0, 2),
    (22, 0, 5), (23, 2, 4), (24, 0, 5), (25, 0, 4), (26, 0, 5), (27, 1, 2), (28, 0, 5), (29, 1, 3), (30, 1, 3),
    (31, 1, 3), (32, 1, 4), (33, 0, 2), (34, 1, 2), (35, 1, 5), (36, 0, 2), (37, 0, 3), (42, 0, 2), (43, 0, 2),
    (44, 0, 1), (45, 0, 1), (46, 0, 0), (47, 0, 0), (48, 0, 1), (49, 0, 1), (50, 0, 0), (51, 0, 0), (55, 0, 2),
    (57, 0, 2), (60, 0, 2), (61, 0, 0), (65, 0, 0), (66, 0, 2), (68, 0, 1), (69, 0, 1), (74, 0, 1), (75, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("api_key", "oldest", "newest"), WANTED)
def test_schemas_cover_the_served_versions(api_key: int, oldest: int, newest: int) -> None:
    known = codec.versions(api_key)
    assert known is not None
    assert known[0] <= oldest
    assert known[1] >= newest


def test_request_and_response_of_an_api_have_the_same_versions() -> None:
    for api in APIS.values():
        request, response = ENTRIES[f"{api.name}Request"], ENTRIES[f"{api.name}Response"]
        assert request.versions == response.versions
        assert request.flexible == response.flexible


def test_index_matches_the_tables() -> None:
    for name, entry in ENTRIES.items():
        schema = schema_of(name)
        assert (schema.role, schema.key, schema.versions, schema.flexible) == (
            entry.role,
            entry.key,
            entry.versions,
            entry.flexible,
        )


def test_every_table_parses_in_well_under_a_millisecond() -> None:
    for table in {entry.table for entry in ENTRIES.values()}:
        text = read_table(table)
        assert any(parse_time_ms(text) < 1.0 for _ in range(50)), table


def parse_time_ms(text: str) -> float:
    start = time.process_time()
    parse_schemas(text)
    return (time.process_time() - start) * 1000


def test_field_line_is_parsed_completely() -> None:
    schema = parse_schemas(
        "# a comment\n"
        "request ThingRequest key=99 versions=1-7 flexible=4+\n"
        "  size int32 1+ default=-1\n"
        "  name string 2-5 null=3+ tag=2 tagged=4+ default=null\n"
        "  parts []Part 1+\n"
        "    weight float64 7\n"
        "  more []Part 6+\n"
    )["ThingRequest"]
    size, name, parts, more = schema.root.fields
    assert size == Field("size", "int32", False, Versions(1, 0x7FFF), default=-1)
    assert (name.versions, name.nullable, name.tag, name.tagged) == (
        Versions(2, 5),
        Versions(3, 0x7FFF),
        2,
        (4, 0x7FFF),
    )
    assert parts.struct is more.struct
    assert schema.nested["Part"].fields == [Field("weight", "float64", False, Versions(7, 7), NEVER, default=0.0)]


def test_tagged_numbers_are_unique_within_a_struct() -> None:
    for name in ENTRIES:
        schema = schema_of(name)
        for struct in (schema.root, *schema.nested.values()):
            for version in range(schema.versions.first, schema.versions.last + 1):
                tags = [each.tag for each in struct.at(version) if each.tagged.has(version)]
                assert len(tags) == len(set(tags)), (name, struct.name)
                assert not tags or schema.flexible.has(version), (name, struct.name)


def load_generator() -> ModuleType:
    pytest.importorskip("kio")
    spec = importlib.util.spec_from_file_location("generate_wire", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_committed_tables_equal_the_generators_output() -> None:
    generated: dict[Path, str] = load_generator().generate()
    assert len(generated) > 90
    for path, text in generated.items():
        assert path.read_text() == text, f"run tools/generate_wire.py: {path.name} is not what it writes"


class KioSamples(Samples):
    """Messages that kio's richer types accept: real error codes, times that Python's dates can hold."""

    def _one(self, schema: Schema, version: int, each: Field, top: Any) -> Any:
        if each.name.endswith("error_code"):
            return self.random.randrange(120)
        if each.name.endswith("_ms"):
            return self.random.randrange(2**31)
        return super()._one(schema, version, each, top)


def test_kio_agrees_where_kafka_python_has_no_schema() -> None:
    index = pytest.importorskip("kio.index")
    serial = pytest.importorskip("kio.serial")
    samples = KioSamples(21)
    for name, version in every_api_message():
        if name in ("ProduceResponse", "FetchRequest", "FetchResponse"):
            continue  # kio omits a tagged struct of defaults, which we write; kafka-python checks these
        key = getattr(messages, name).API_KEY
        is_request = name.endswith("Request")
        kio_class = (index.load_request_schema if is_request else index.load_response_schema)(key, version)
        out: list[Any] = []
        (codec.encode_request if is_request else codec.encode_response)(
            key, version, samples.message(name, version), out
        )
        body, written = b"".join(out), io.BytesIO()
        entity, _ = serial.entity_reader(kio_class)(body, 0)
        serial.entity_writer(kio_class)(written, entity)
        assert written.getvalue() == body, (name, version)
