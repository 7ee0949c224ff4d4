"""The commands of the cluster guide are run in order; its machines are loopback addresses."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "guides" / "cluster.md"
STEP: Final = re.compile(
    r"^```(sh|properties)\n(.*?)^```$|^<!-- (stop|lose|restart) (\w+) -->$", re.DOTALL | re.MULTILINE
)
MACHINES: Final = ("alpha", "beta", "gamma", "delta")
DATA: Final = "/var/lib/moldau"
COMMAND_S_MAX: Final = 90
STOP_S_MAX: Final = 60

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux responses on all of 127.0.0.0/8"),
    pytest.mark.timeout(400),
    pytest.mark.proves("H8"),
]


class Machines:
    """The simulated machines: a directory, an address and the running nodes of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        network = f"127.{1 + os.getpid() % 250}.{1 + os.getpid() // 250 % 250}"
        self._addresses = {name: f"{network}.{number}" for number, name in enumerate(MACHINES, 1)}
        self.printed: list[str] = []
        self._running: dict[str, tuple[list[str], subprocess.Popen[Any]]] = {}
        bin_folder = str(Path(sys.executable).parent)
        self._environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "NO_COLOR": "1"}
        for name in MACHINES:
            (folder / name).mkdir()

    def play(self, page: str) -> None:
        for step in STEP.finditer(page):
            language, text, verb, machine = step.groups()
            if verb is not None:
                getattr(self, verb)(machine)
            elif language == "sh":
                self._run(text)
            else:
                self._write_settings(text)

    def stop(self, machine: str) -> list[str]:
        command, process = self._running.pop(machine)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S_MAX) == 0, self.log(machine)
        return command

    def lose(self, machine: str) -> None:
        """Kill the node and remove its disk."""
        _, process = self._running.pop(machine)
        process.kill()
        process.wait()
        shutil.rmtree(self._home(machine, "data"))

    def restart(self, machine: str) -> None:
        self._start(machine, self.stop(machine))

    def close(self) -> None:
        for _, process in self._running.values():
            process.kill()
            process.wait()

    def log(self, machine: str) -> str:
        return self._home(machine, "log").read_text()[-4000:]

    def _write_settings(self, text: str) -> None:
        """Write the settings: beta and gamma share alpha's file except for the first two lines; delta has its own."""
        heading, number, listeners, *rest = text.splitlines(keepends=True)
        (shown,) = (name for name in MACHINES if f" on {name}" in heading)
        for index, name in enumerate(MACHINES if shown == MACHINES[0] else [shown]):
            own = [number.replace("1", str(1 + index)), listeners.replace(shown, name), *rest]
            self._home(name, "moldau.properties").write_text(self._here("".join(own), name))

    def _run(self, text: str) -> None:
        machine = MACHINES[0]
        for line in text.splitlines():
            if line.startswith("# on "):
                machine = line.removeprefix("# on ")
            elif line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                self._environment[name] = self._here(value, machine)
            elif line.startswith("moldau start "):
                self._start(machine, shlex.split(self._here(line, machine)))
            else:
                self._command(machine, self._here(line, machine))

    def _command(self, machine: str, line: str) -> None:
        """Run a command and save its output."""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder / machine,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        self.printed.append(done.stdout)

    def _start(self, machine: str, command: list[str]) -> None:
        """Start a node in the background and wait until it is ready."""
        announced, announce = os.pipe()
        with self._home(machine, "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "-c", "moldau.metrics.listener=", "--announce-fd", str(announce)],
                cwd=self.folder / machine,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(announce,),
            )
        os.close(announce)
        self._running[machine] = command, process
        with os.fdopen(announced) as line:
            assert line.readline(), f"{shlex.join(command)}\n{self.log(machine)}"

    def _here(self, text: str, machine: str) -> str:
        """Replace paths by those of the machine, and host names by loopback addresses."""
        text = text.replace(DATA, str(self._home(machine, "data")))
        return re.sub(r"\b(alpha|beta|gamma|delta)(?=:\d)", lambda name: self._addresses[name[1]], text)

    def _home(self, machine: str, name: str) -> Path:
        return self.folder / machine / name


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    yield machines
    machines.close()


def test_every_step_of_the_guide_works(machines: Machines) -> None:
    machines.play(PAGE.read_text())
    assert machines.printed[-1].strip() == "1000", "records were lost"
