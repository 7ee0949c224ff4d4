"""ARCHITECTURE.md agrees with the tree: paths exist, table rows name them, the layers are those of the contract."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from house.source import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
FOLDERS = [ROOT, ROOT / "src", ROOT / "src/moldau"]
PATH = re.compile(r"`([a-z_.]+(?:/[\w.*-]+)+/?|[a-z_]+/|[a-z_]+\.(?:py|toml))`")


def missing_paths(text: str, folders: Sequence[Path]) -> list[str]:
    """Return the paths in code spans that exist below none of the folders."""
    return [path for path in PATH.findall(text) if not any(list(folder.glob(path.rstrip("/"))) for folder in folders)]


def table_rows(page: str, first_header: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the table whose first column has this header."""
    _, _, table = page.partition(f"\n| {first_header} |")
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def broker_layers() -> list[set[str]]:
    """Return the layers of `moldau.broker` from top to bottom, as import-linter checks them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each.get("containers") == ["moldau.broker"])
    return [{name.strip() for name in layer.split("|")} for layer in contract["layers"]]


def layers_named(rows: Iterator[list[str]]) -> list[str]:
    """Return the packages and modules of the broker in the first column, in the order of the page."""
    return [name for cells in rows for name in re.findall(r"`broker/(\w+)(?:/|\.py)`", cells[0])]


def test_every_path_exists() -> None:
    assert len(PATH.findall(PAGE)) > 100
    assert not missing_paths(PAGE, FOLDERS)


def test_every_row_of_the_path_tables_names_a_path() -> None:
    rows = [(header, cells) for header in ("question", "step", "part") for cells in table_rows(PAGE, header)]
    assert len(rows) > 30
    pathless = [cells[0] for _, cells in rows if not any(PATH.search(cell) for cell in cells[1:])]
    assert not pathless


def test_broker_table_lists_the_layers_of_the_import_contract_in_order() -> None:
    named = layers_named(table_rows(PAGE, "package"))
    for layer in broker_layers():
        found, named = set(named[: len(layer)]), named[len(layer) :]
        assert found == layer
    assert not named


def test_layer_diagram_names_every_package() -> None:
    _, _, rest = PAGE.partition("```\n")
    diagram = rest.partition("```")[0]
    packages = {each.parent.name for each in (ROOT / "src/moldau").glob("*/__init__.py")}
    assert len(packages) > 8
    assert not {package for package in packages if not re.search(rf"[│ ]{package}\b", diagram)}


def test_missing_path_is_found(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker/broker.py").touch()
    text = "`broker/broker.py` `broker/gone.py` `broker/` `machines/`"
    assert missing_paths(text, [tmp_path]) == ["broker/gone.py", "machines/"]


def test_rows_end_with_their_table() -> None:
    page = "\n| question | look in |\n|---|---|\n| Where? | `here/` |\n\n| not | this |\n"
    assert list(table_rows(page, "question")) == [["Where?", "`here/`"]]
