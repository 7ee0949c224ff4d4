"""The installed package: its metadata and version, and the ways to start the program."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from moldau import __version__
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_python_dash_m_moldau_runs_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "moldau", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"moldau {__version__}\n"


def test_changelog_has_a_section_for_the_version_below_unreleased() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} - \d{{4}}-\d\d-\d\d", sections[1])


def test_dependencies_of_every_install_have_no_upper_bound() -> None:
    extras = PROJECT["optional-dependencies"]
    always = [*PROJECT["dependencies"], *extras["client"]]
    assert [each for each in always if "<" in each or "==" in each] == []


def test_metadata_names_authors_and_supported_pythons() -> None:
    assert PROJECT["authors"]
    assert "Programming Language :: Python :: 3.11" in PROJECT["classifiers"]


def test_no_page_installs_the_package_from_an_index_that_lacks_it() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    pages += [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    found = [page.name for page in pages if "pip install 'moldau" in page.read_text()]
    assert found == []


def test_broker_of_a_test_starts_groups_without_the_initial_rebalance_delay() -> None:
    name = "group.initial.rebalance.delay.ms"
    broker = Broker()
    assert broker.settings[name] == "0"
    assert Broker(group_initial_rebalance_delay_ms=50).settings[name] == 50
    cluster = Cluster(brokers=1)
    try:
        assert cluster[1].settings.get(name, cluster.layout.nodes[0].settings.get(name)) == "0"
    finally:
        cluster.close()
    broker.close()


def test_make_run_starts_groups_at_once_and_announces_pip() -> None:
    dry = subprocess.run(
        ["make", "--dry-run", "--always-make", "run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "moldau start --data ./data --listen 127.0.0.1:9092 -c group.initial.rebalance.delay.ms=0" in dry.stdout
    lines = dry.stdout.splitlines()
    (pip,) = (number for number, line in enumerate(lines) if "pip install" in line)
    assert lines[pip - 1].startswith('echo "Installing Moldau')
