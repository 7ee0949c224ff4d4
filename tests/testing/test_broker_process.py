"""How the broker fixture treats its process, tried on a stand-in that keeps the agreement about pipes and no more."""

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

STAND_IN = """
import json, os, select, signal, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
print("started with", *sys.argv[1:], flush=True)
{before}
host, port = options["--listen"].split(":")
ready = {{"bootstrap_servers": f"{{host}}:{{port if port != '0' else 40404}}", "metrics": None}}
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # a handler in Python may be put off until after the select
signal.signal(signal.SIGTERM, lambda *_: None)
with os.fdopen(int(options["--announce-fd"]), "w") as announce:
    announce.write(json.dumps(ready) + "\\n")
select.select([woken, int(options["--lifeline-fd"])], [], [])
print("stopping", flush=True)
sys.exit({code})
"""


class StandIn(Broker):
    """The fixture with another program behind it."""

    def __init__(self, folder: Path, before: str = "", code: int = 0, **options: Any) -> None:
        super().__init__(**options)
        program = folder / "stand_in.py"
        program.write_text(STAND_IN.format(before=textwrap.dedent(before), code=code))
        self.command = (sys.executable, str(program))  # type: ignore[misc]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(tmp_path, log_segment_bytes=1024, auto_create_topics_enable=False) as broker:
        yield broker


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_ready_when_it_says_so_and_gets_its_settings_by_kafkas_names(broker: StandIn) -> None:
    assert broker.bootstrap_servers == "127.0.0.1:40404"
    assert broker.is_running
    assert "-c log.segment.bytes=1024 -c auto.create.topics.enable=false" in broker.log
    assert f"--data {broker.data}" in broker.log


def test_a_restart_keeps_folder_and_port(broker: StandIn) -> None:
    first = broker.pid
    broker.restart()
    assert broker.pid != first
    assert not is_alive(first)
    assert "--listen 127.0.0.1:40404" in broker.log
    assert broker.log.count("stopping") == 1


def test_a_kill_gives_no_time_to_stop(broker: StandIn) -> None:
    pid = broker.pid
    broker.kill()
    assert not is_alive(pid)
    assert not broker.is_running
    assert "stopping" not in broker.log
    broker.start()
    assert broker.is_running


def test_a_paused_broker_can_go_on_and_be_stopped(broker: StandIn) -> None:
    broker.pause()
    broker.resume()
    broker.pause()
    broker.stop()
    assert not broker.is_running
    assert "stopping" in broker.log
    broker.stop()


def test_starting_twice_is_refused(broker: StandIn) -> None:
    with pytest.raises(BrokerFailed, match="already"):
        broker.start()


@pytest.fixture
def crowd() -> Iterator[None]:
    """So many open files that the next one has a number that `select.select` refuses."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(4096, limits[1])), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < 1100:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for each in opened:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("crowd")
def test_a_process_with_many_open_files_may_start_a_broker(tmp_path: Path) -> None:
    lower = 'options["--lifeline-fd"] = os.dup(int(options["--lifeline-fd"]))'  # for the select of the stand-in
    with StandIn(tmp_path, before=lower) as broker:
        assert broker.bootstrap_servers == "127.0.0.1:40404"


def test_a_broker_that_cannot_start_says_why_in_its_own_words(tmp_path: Path) -> None:
    broken = StandIn(tmp_path, before='sys.exit("the port is taken")')
    with pytest.raises(BrokerFailed, match=r"(?s)ended with code 1 before it was ready.*the port is taken"), broken:
        pass
    assert not broken.data.parent.exists()


def test_a_broker_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    slow = StandIn(tmp_path, before="select.select([], [], [], 60)", ready_s_max=0.5)
    with pytest.raises(BrokerFailed, match=r"not ready within 0\.5 s"), slow:
        pass
    assert not slow.is_running


def test_a_broker_that_does_not_stop_is_killed_and_told_of(tmp_path: Path) -> None:
    stubborn = StandIn(tmp_path, code="signal.pause()", stop_s_max=0.5)  # type: ignore[arg-type]
    with pytest.raises(BrokerFailed, match=r"did not stop within 0\.5 s"), stubborn:
        pass
    assert not stubborn.is_running


def test_a_broker_that_ends_badly_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="code 3"), StandIn(tmp_path, code=3):
        pass


def test_a_failing_test_shows_the_brokers_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the test") as caught, StandIn(tmp_path):
        raise ValueError("of the test")
    assert "started with" in caught.value.__notes__[0]


def test_a_broker_ends_with_what_is_raised_though_it_takes_no_notes(tmp_path: Path) -> None:
    broker = StandIn(tmp_path).start()
    pid = broker.pid
    confluents_error: Any = object()  # its `KafkaError` is no exception, and yet comes out of callbacks as one
    broker.__exit__(None, confluents_error, None)
    assert not is_alive(pid)
    assert not broker.data.parent.exists()


LEAVES_THE_BLOCK = """
    import os, sys
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from test_broker_process import StandIn
    with StandIn(Path({folder!r})) as broker:
        forked = os.fork()
        if not forked:
            sys.exit()
        os.waitpid(forked, 0)
        assert Path(broker._log_path).exists() and "stopping" not in broker.log
"""


def test_a_forked_process_that_leaves_the_block_takes_nothing_along(tmp_path: Path) -> None:
    program = textwrap.dedent(LEAVES_THE_BLOCK.format(here=str(Path(__file__).parent), folder=str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_a_program_that_is_not_there_leaves_no_pipes_open(tmp_path: Path) -> None:
    broker = StandIn(tmp_path)
    broker.command = (str(tmp_path / "nothing"),)  # type: ignore[misc]
    before = os.listdir("/dev/fd")
    with pytest.raises(FileNotFoundError), broker:
        pass
    assert os.listdir("/dev/fd") == before


def test_temporary_data_goes_and_given_data_stays(tmp_path: Path) -> None:
    with StandIn(tmp_path) as temporary:
        temporary.data.mkdir()
    assert not temporary.data.exists()
    (tmp_path / "mine").mkdir()
    with StandIn(tmp_path, data=tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").exists()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux lets us wait for a process that is not ours")
def test_a_broker_does_not_outlive_the_test_process(tmp_path: Path) -> None:
    program = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_broker_process import StandIn
        broker = StandIn(Path({str(tmp_path)!r})).start()
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
        assert select.select([descriptor], [], [], 30)[0], "the broker lives on"


def test_the_plugin_costs_a_pytest_run_nothing() -> None:
    program = (
        "import sys, json, moldau.testing.pytest_plugin;"
        "print(json.dumps([name for name in sys.modules if name.startswith('moldau')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert sorted(json.loads(done.stdout)) == ["moldau", "moldau.testing", "moldau.testing.pytest_plugin"]


def test_the_public_names_are_at_hand() -> None:
    import moldau.testing

    assert moldau.testing.Broker is Broker
    with pytest.raises(AttributeError):
        moldau.testing.NoSuchName  # noqa: B018
