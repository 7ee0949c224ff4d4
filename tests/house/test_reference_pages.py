"""The reference pages say what the code declares."""

import pytest
import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_fresh(name: str) -> None:
    assert (reference.FOLDER / name).read_text() == reference.PAGES[name](), f"{name} is stale: run `make docs`"


def test_every_page_in_the_folder_is_written_by_the_tool() -> None:
    assert {path.name for path in reference.FOLDER.iterdir()} == set(reference.PAGES)
