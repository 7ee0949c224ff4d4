"""The reference pages say what the code declares."""

import pytest
import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (reference.DOCS / name).read_text() == reference.PAGES[name](), f"{name} is stale: run `make docs`"


def test_every_page_in_the_folder_is_written_by_the_tool() -> None:
    written = {path.relative_to(reference.DOCS).as_posix() for path in (reference.DOCS / "reference").iterdir()}
    assert written == {name for name in reference.PAGES if name.startswith("reference/")}
