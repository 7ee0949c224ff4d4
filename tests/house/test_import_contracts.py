"""The import contracts are seen to break when a module of a copied tree breaks them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house.source import ROOT

TYPES_ONLY = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import moldau.broker.controllers"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("place", "line", "contract"),
    [
        ("machines/clocked.py", "import time", "Machines are pure"),
        ("machines/logging_one.py", "import logging", "Machines are pure"),
        ("machines/stored.py", "import moldau.storage", "Imports point down"),
        ("model/upward.py", "import moldau.broker", "Imports point down"),
        ("storage/sideways.py", "import moldau.machines", "Imports point down"),
        ("wire/talking.py", "import socket", "do no I/O"),
        ("newcomer/__init__.py", "", "Imports point down"),
        ("broker/network/api.py", "import moldau.broker.handlers", "The network knows frames"),
        ("broker/partitions/upward.py", "import moldau.broker.fetch", "Layers of the broker"),
        ("broker/handlers/whole.py", "import moldau.broker.broker", "Layers of the broker"),
        ("broker/handlers/connected.py", "import moldau.broker.network", "Layers of the broker"),
        ("broker/drivers/typed.py", TYPES_ONLY, "Layers of the broker"),
        ("broker/newcomer.py", "", "Layers of the broker"),
        ("node/pages.py", "import uvicorn", "HTTP frameworks"),
        ("console/inside.py", "import moldau.node", "The faces are clients"),
        ("registry/sideways.py", "import moldau.console", "Imports point down"),
        ("cli/development.py", "import moldau_dev", "without the development tools"),
        ("../pyspark_moldau/java.py", "import moldau.pipelines", "above the client and below the pipelines"),
        ("../pyspark_moldau/source/both.py", "import pyspark_moldau.sink", "Layers of the Spark data source"),
        ("../pyspark_moldau/codec/cluster.py", "import confluent_kafka", "neither Spark nor a cluster"),
    ],
)
def test_module_out_of_place_breaks_its_contract(tmp_path: Path, place: str, line: str, contract: str) -> None:
    skeleton(tmp_path)
    path = tmp_path / "src/moldau" / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(line + "\n")
    result = lint(tmp_path)
    broken = [row for row in result.stdout.splitlines() if row.endswith("BROKEN")]
    assert len(broken) == 1, result.stdout + result.stderr
    assert contract in broken[0]


def skeleton(folder: Path) -> None:
    """The empty layers with the contracts of the real tree."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    layered = [ROOT / "src/moldau", ROOT / "src/moldau/broker", ROOT / "src/pyspark_moldau"]
    modules = sorted((ROOT / "src/moldau/broker").glob("*.py"))
    packages = [ROOT / "src/moldau_dev", *layered, *(each for root in layered for each in sorted(root.glob("*/")))]
    inits = [package / "__init__.py" for package in packages if (package / "__init__.py").exists()]
    for path in [*inits, *modules]:
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("")
