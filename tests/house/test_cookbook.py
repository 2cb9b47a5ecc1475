"""The cookbook is true: every recipe's command prints what its page shows."""

from pathlib import Path

import pytest

from tests.house.cookbook import BLOCK, PAGES, lasting, played
from tests.house.sources import ROOT

INDEX = (ROOT / "docs" / "cookbook" / "index.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_page_shows_what_its_command_prints(page: Path) -> None:
    text = page.read_text("utf-8")
    assert lasting(played(text)) == lasting(text), "run 'make cookbook'"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_recipe_is_one_command_no_wider_than_a_page(page: Path) -> None:
    text = page.read_text("utf-8")
    (found,) = BLOCK.finditer(text)
    assert len(found[2].splitlines()) > 2
    assert max(map(len, found[0].splitlines())) <= 90
    assert f"]({page.name})" in INDEX


def test_there_are_thirteen() -> None:
    assert len(PAGES) == 13


def test_what_ages_is_left_out_of_the_comparison_and_figures_are_not() -> None:
    assert lasting("Searched 4,912 plans in 7.21 s, kept") == lasting(
        "Searched 4,912 plans in\n  812 ms, kept"
    )
    assert lasting("Searched 4,912 plans in 7.21 s") != lasting("Searched 4,913 plans in 7.21 s")
    assert lasting("Fits: 18.2 GiB") != lasting("Fits: 18.3 GiB")
