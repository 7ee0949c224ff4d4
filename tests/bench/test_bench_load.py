"""The load generator and the baselines, against each other."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moldau.cli.bench import servers
from moldau.cli.bench.bench import SCRIPTS
from moldau.cli.bench.closed_loop import Pump
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.open_loop import Pace
from moldau.cli.bench.pages import touch_pages
from moldau.cli.bench.requests import Shape, fetch_frame, produce_frame
from moldau.cli.bench.streams import Address, Flow, NoResponse
from moldau.cli.errors import CommandError
from moldau.records.record import iterate_records
from moldau.records.validation import validate_produced
from moldau.wire.codec import decode_request
from moldau.wire.framing import parse_request_header


def test_reference_loop_writes_and_acknowledges_each_frame(tmp_path: Path) -> None:
    frames = [bytes([number]) * 1000 for number in range(3)]
    server = servers.baseline("receive_and_write", tmp_path, SCRIPTS, folder=tmp_path, frame_bytes=1000, reply_bytes=40)
    with server:
        pumped = Pump([Flow(server.address, frames, 40)] * 2, in_flight=3, requests_max=50, seconds_max=10).run()
    assert pumped.requests == 50
    assert pumped.elapsed_s > 0
    assert not list(tmp_path.glob("received-*"))


def test_pump_ends_after_its_time_with_all_responses(tmp_path: Path) -> None:
    with servers.baseline(
        "receive_and_write", tmp_path, SCRIPTS, folder=tmp_path, frame_bytes=100, reply_bytes=10
    ) as s:
        pumped = Pump([Flow(s.address, [bytes(100)], 10)], in_flight=5, requests_max=10**9, seconds_max=0.1).run()
    assert pumped.requests > 5
    assert 0.1 <= pumped.elapsed_s < 5


@pytest.mark.parametrize("slice_bytes", [10, 300_000])
def test_file_slices_come_with_their_headers(tmp_path: Path, slice_bytes: int) -> None:
    path = tmp_path / "sent"
    path.write_bytes(bytes(number % 256 for number in range(10)) * 100_000)
    with (
        servers.baseline(
            "send_file", tmp_path, SCRIPTS, file=path, request_bytes=8, head_bytes=5, slice_bytes=slice_bytes
        ) as server,
        socket.create_connection(server.address, timeout=10) as connection,
    ):
        connection.sendall(bytes(8 * 4))
        expected = b"".join([bytes(5) + (bytes(range(10)) * 100_000)[:slice_bytes]] * 4)
        with connection.makefile("rb") as responses:
            assert responses.read(len(expected)) == expected


def test_pump_accepts_large_responses(tmp_path: Path) -> None:
    path = tmp_path / "sent"
    path.write_bytes(bytes(4_000_000))
    options = {"file": path, "request_bytes": 8, "head_bytes": 5, "slice_bytes": 1_000_000}
    with servers.baseline("send_file", tmp_path, SCRIPTS, **options) as server:
        flows = [Flow(server.address, [bytes(8)], 1_000_005)] * 2
        assert Pump(flows, in_flight=2, requests_max=20, seconds_max=10).run().requests == 20


def test_paced_load_samples_every_request(tmp_path: Path) -> None:
    with servers.baseline("echo", tmp_path, SCRIPTS) as server, Generator() as generator:
        samples_ms = generator.run(Pace([Flow(server.address, [bytes(5000)], 5000)] * 2, 500, 0.4))
    assert len(samples_ms) == 200
    assert all(each > 0 for each in samples_ms)


def test_generator_failure_is_raised_in_the_caller() -> None:
    with Generator() as generator, pytest.raises(ConnectionRefusedError):
        generator.run(Pump([Flow(("127.0.0.1", unused_port()), [b"x"], 1)], 1, 1, 1.0))


def test_closed_connection_is_reported() -> None:
    with serve_one(lambda connection: connection.recv(1)) as address, pytest.raises(OSError, match=r"closed|reset"):
        Pump([Flow(address, [bytes(10)], 10)], in_flight=1, requests_max=2, seconds_max=5).run()


def test_responses_of_unexpected_size_are_not_counted() -> None:
    def response(connection: socket.socket) -> None:
        connection.recv(10)
        connection.sendall(bytes(35))
        connection.recv(1)

    with serve_one(response) as address, pytest.raises(NoResponse, match="differ in size"):
        Pump([Flow(address, [bytes(10)], 10)], in_flight=1, requests_max=5, seconds_max=5).run()


def test_frames_of_a_flow_must_have_one_size() -> None:
    with pytest.raises(ValueError, match="unpack"):
        assert Flow(("127.0.0.1", 1), [b"a", b"bb"], 1).frame_bytes


def test_server_that_does_not_start_reports_why(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="frame-bytes"), servers.baseline("receive_and_write", tmp_path, SCRIPTS):
        pass


def test_touched_pages_leave_no_file(tmp_path: Path) -> None:
    touch_pages(tmp_path, 3_000_000)
    assert not os.listdir(tmp_path)


def test_shape_builds_a_valid_batch() -> None:
    batch = Shape(600, 100).batch()
    assert validate_produced(memoryview(batch)).records_count == 600
    assert 64_000 < len(batch) < 67_000


def test_keys_repeat_in_order() -> None:
    batch = Shape(5, 1).batch(key_count=3, first_key=2)
    assert [(record.key or b"")[-1:] for record in iterate_records(batch)] == [b"2", b"0", b"1", b"2", b"0"]


def test_prepared_frames_are_complete_requests() -> None:
    batch = Shape(1, 10).batch()
    for frame in (produce_frame("topic", 3, batch), fetch_frame("topic", 3, 7, 1000)):
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        body = memoryview(frame)[4:]
        header, position = parse_request_header(body)
        request = decode_request(header.api_key, header.api_version, body[position:])
        topics = getattr(request, "topic_data", None) or request.topics
        assert len(topics) == 1


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def serve_one(response: Callable[[socket.socket], object]) -> Iterator[Address]:
    """A server for one connection."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            response(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            thread.join(10)
