"""Process handling of the broker fixture, tested with a stub program that implements only the two pipes."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.testing.broker import Broker, BrokerFailed

STUB_PROGRAM = """
import json, os, select, signal, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
print("started with", *sys.argv[1:], flush=True)
{before}
host, port = options["--listen"].split(":")
ready = {{"bootstrap_servers": f"{{host}}:{{port if port != '0' else 40404}}", "metrics": None}}
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # a Python handler may only run after the select
signal.signal(signal.SIGTERM, lambda *_: None)
with os.fdopen(int(options["--announce-fd"]), "w") as announce:
    announce.write(json.dumps(ready) + "\\n")
select.select([woken, int(options["--lifeline-fd"])], [], [])
print("stopping", flush=True)
sys.exit({code})
"""


class StubBroker(Broker):
    """The fixture with a stub program instead of `moldau start`."""

    def __init__(self, folder: Path, before: str = "", code: int = 0, **options: Any) -> None:
        super().__init__(**options)
        program = folder / "stub.py"
        program.write_text(STUB_PROGRAM.format(before=textwrap.dedent(before), code=code))
        self.command = (sys.executable, str(program))  # type: ignore[misc]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StubBroker]:
    with StubBroker(tmp_path, log_segment_bytes=1024, auto_create_topics_enable=False) as broker:
        yield broker


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_broker_is_ready_once_announced_and_gets_settings_by_kafka_name(broker: StubBroker) -> None:
    assert broker.bootstrap_servers == "127.0.0.1:40404"
    assert broker.is_running
    file = broker.log.partition("--config ")[2].strip()
    assert "log.segment.bytes=1024\nauto.create.topics.enable=false\n" in Path(file).read_text()
    assert f"--data {broker.data}" in broker.log


def test_restart_keeps_data_and_port(broker: StubBroker) -> None:
    first = broker.pid
    broker.restart()
    assert broker.pid != first
    assert not is_alive(first)
    assert "--listen 127.0.0.1:40404" in broker.log
    assert broker.log.count("stopping") == 1


def test_kill_skips_the_shutdown(broker: StubBroker) -> None:
    pid = broker.pid
    broker.kill()
    assert not is_alive(pid)
    assert not broker.is_running
    assert "stopping" not in broker.log
    broker.start()
    assert broker.is_running


def test_paused_broker_can_be_resumed_and_stopped(broker: StubBroker) -> None:
    broker.pause()
    broker.resume()
    broker.pause()
    broker.stop()
    assert not broker.is_running
    assert "stopping" in broker.log
    broker.stop()


def test_start_of_a_running_broker_is_rejected(broker: StubBroker) -> None:
    with pytest.raises(BrokerFailed, match="already"):
        broker.start()


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Open so many files that the next descriptor is too large for `select.select`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(4096, limits[1])), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < 1100:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for each in opened:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("many_open_files")
def test_broker_starts_from_a_process_with_many_open_files(tmp_path: Path) -> None:
    lower = 'options["--lifeline-fd"] = os.dup(int(options["--lifeline-fd"]))'  # small enough for the stub's select
    with StubBroker(tmp_path, before=lower) as broker:
        assert broker.bootstrap_servers == "127.0.0.1:40404"


def test_error_contains_the_output_when_the_broker_cannot_start(tmp_path: Path) -> None:
    broken = StubBroker(tmp_path, before='sys.exit("the port is taken")')
    with (
        pytest.raises(
            BrokerFailed, match=r"(?s)exited with code 1 before it was ready. Its output:.*the port is taken"
        ),
        broken,
    ):
        pass
    assert not broken.data.parent.exists()


def test_start_times_out_when_the_broker_is_never_ready(tmp_path: Path) -> None:
    slow = StubBroker(tmp_path, before="select.select([], [], [], 60)", ready_s_max=0.5)
    with pytest.raises(BrokerFailed, match=r"not ready within 0\.5 s"), slow:
        pass
    assert not slow.is_running


def test_broker_is_killed_and_reported_when_it_does_not_stop(tmp_path: Path) -> None:
    stubborn = StubBroker(tmp_path, code="signal.pause()", stop_s_max=0.5)  # type: ignore[arg-type]
    with pytest.raises(BrokerFailed, match=r"did not stop within 0\.5 s"), stubborn:
        pass
    assert not stubborn.is_running


def test_exit_code_of_the_broker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="code 3"), StubBroker(tmp_path, code=3):
        pass


def test_failing_test_shows_the_log_of_the_broker(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the test") as caught, StubBroker(tmp_path):
        raise ValueError("of the test")
    assert "started with" in caught.value.__notes__[0]


def test_broker_is_closed_when_the_raised_error_takes_no_notes(tmp_path: Path) -> None:
    broker = StubBroker(tmp_path).start()
    pid = broker.pid
    confluents_error: Any = object()  # its `KafkaError`, raised in callbacks, is not an exception
    broker.__exit__(None, confluents_error, None)
    assert not is_alive(pid)
    assert not broker.data.parent.exists()


FORKS_IN_BLOCK = """
    import os, sys
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from test_broker_process import StubBroker
    with StubBroker(Path({folder!r})) as broker:
        forked = os.fork()
        if not forked:
            sys.exit()
        os.waitpid(forked, 0)
        assert Path(broker._log_path).exists() and "stopping" not in broker.log
"""


def test_broker_stays_when_a_forked_child_leaves_the_block(tmp_path: Path) -> None:
    program = textwrap.dedent(FORKS_IN_BLOCK.format(here=str(Path(__file__).parent), folder=str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_no_pipe_stays_open_when_the_program_is_missing(tmp_path: Path) -> None:
    broker = StubBroker(tmp_path)
    broker.command = (str(tmp_path / "nothing"),)  # type: ignore[misc]
    before = os.listdir("/dev/fd")
    with pytest.raises(FileNotFoundError), broker:
        pass
    assert os.listdir("/dev/fd") == before


def test_close_removes_temporary_data_and_keeps_given_data(tmp_path: Path) -> None:
    with StubBroker(tmp_path) as temporary:
        temporary.data.mkdir()
    assert not temporary.data.exists()
    (tmp_path / "mine").mkdir()
    with StubBroker(tmp_path, data=tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").exists()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for a process that is not a child")
def test_broker_does_not_outlive_the_test_process(tmp_path: Path) -> None:
    program = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_broker_process import StubBroker
        broker = StubBroker(Path({str(tmp_path)!r})).start()
        print(broker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    wait_for_end(int(done.stdout))


def wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor):
        assert select.select([descriptor], [], [], 30)[0], "the broker is still running"


def test_pytest_plugin_imports_no_broker_code() -> None:
    program = (
        "import sys, json, moldau.testing.pytest_plugin;"
        "print(json.dumps([name for name in sys.modules if name.startswith('moldau')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert sorted(json.loads(done.stdout)) == ["moldau", "moldau.testing", "moldau.testing.pytest_plugin"]


def test_public_names_are_importable_from_the_package() -> None:
    import moldau.testing

    assert moldau.testing.Broker is Broker
    with pytest.raises(AttributeError):
        moldau.testing.NoSuchName  # noqa: B018
