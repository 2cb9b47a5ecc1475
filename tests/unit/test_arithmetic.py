import sys
from subprocess import run
from typing import Any

import numpy as np
import pytest

from finegauge.arithmetic import (
    ceil,
    chosen,
    every,
    largest,
    log,
    place_of_largest,
    present,
    rounded,
    smallest,
    where,
)

NUMBERS: Any = np.array([-2.5, 0.0, 0.5, 1.5, 7.0])


@pytest.mark.parametrize(
    "function",
    [ceil, rounded, lambda x: largest(x, 1.0), lambda x: smallest(0.25, x, 3.0), lambda x: log(x + 3.0)],
)
def test_arrays_are_what_their_numbers_are_one_by_one(function) -> None:  # type: ignore[no-untyped-def]
    assert function(NUMBERS).tolist() == pytest.approx([function(float(x)) for x in NUMBERS], rel=1e-15)


def test_plain_numbers_stay_plain() -> None:
    assert type(largest(1, 2)) is int
    assert type(smallest(1.0, 2.0)) is float
    assert type(where(True, 3, 4)) is int
    assert (largest(2.0, 5.0, 3.0), smallest(2.0, 5.0, 3.0)) == (5.0, 2.0)


def test_a_choice_is_made_candidate_by_candidate() -> None:
    floor: Any = -1.0
    assert where(NUMBERS > 0, NUMBERS, floor).tolist() == [-1.0, -1.0, 0.5, 1.5, 7.0]
    place = place_of_largest([np.array([1.0, 9.0]), 4.0, np.array([4.0, 2.0])])
    assert place.tolist() == [1, 0]  # the first of equals
    assert chosen([np.array([10.0, 11.0]), 20.0, np.array([30.0, 31.0])], place).tolist() == [20.0, 11.0]


def test_the_largest_of_plain_numbers_is_a_place() -> None:
    assert place_of_largest([1.0, 5.0, 5.0]) == 1
    assert chosen(["a", "b", "c"], 1) == "b"


def test_shapes_broadcast() -> None:
    rows, columns = np.array([[1.0], [5.0]]), np.array([2.0, 4.0, 6.0])
    assert place_of_largest([rows, columns]).tolist() == [[1, 1, 1], [0, 0, 1]]
    assert chosen([rows, columns], place_of_largest([rows, columns])).tolist() == [[2, 4, 6], [5, 5, 6]]


def test_an_array_may_always_be_something() -> None:
    assert present(np.zeros(2))
    assert not present(0.0)
    assert present(0.1)


def test_a_condition_that_differs_between_candidates_is_not_every() -> None:
    assert every(np.array([True, True]))
    assert not every(np.array([True, False]))
    assert [every(True), every(False)] == [True, False]


def test_plain_numbers_import_no_numpy() -> None:
    calls = "a.largest(1.0, 2.0); a.where(True, 2, 3)"
    code = f"import sys; from finegauge import arithmetic as a; {calls}; sys.exit('numpy' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
