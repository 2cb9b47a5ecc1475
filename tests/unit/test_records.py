"""NamedTuple of ours against typing's."""

import pickle
import typing
from copy import deepcopy
from typing import Any, get_type_hints

import pytest

from finegauge.records import FEW, NamedTuple, same


class Ours(NamedTuple):
    """A pair with a default."""

    size: int
    name: str = "none"

    @property
    def twice(self) -> int:
        """Return twice the size."""
        return 2 * self.size


class Theirs(typing.NamedTuple):
    size: int
    name: str = "none"


class Derived(Ours):
    """Has no fields of its own."""


def said(kind: Any, *values: Any, **named: Any) -> str:
    try:
        made = kind(*values, **named)
    except TypeError as error:
        return str(error).partition("() ")[2]
    return str(tuple(made))


@pytest.mark.parametrize("repeat", [1, FEW + 5])
def test_it_is_made_read_and_replaced_as_typings(repeat: int) -> None:
    for _ in range(repeat):
        for values, named in (
            ((1,), {}),
            ((1, "a"), {}),
            ((), {"size": 1, "name": "b"}),
            ((1,), {"name": "c"}),
        ):
            assert Ours(*values, **named) == tuple(Theirs(*values, **named))
    made = Ours(3, name="x")
    assert (made.size, made.name, made.twice, repr(made)) == (3, "x", 6, "Ours(size=3, name='x')")
    assert made._replace(size=4) == (4, "x")
    assert made._asdict() == {"size": 3, "name": "x"}
    assert Ours._make([1, "y"]) == (1, "y")
    assert Ours._fields == Theirs._fields
    assert Ours._field_defaults == Theirs._field_defaults
    assert get_type_hints(Ours) == get_type_hints(Theirs)
    assert pickle.loads(pickle.dumps(made)) == deepcopy(made) == made
    assert isinstance(Derived(2), Ours)
    assert Derived(2).twice == 4


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, "a", 2), {}), ((1,), {"size": 2}), ((1,), {"x": 2})]
)
def test_it_refuses_what_typings_refuses(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert said(Ours, *values, **named) == said(Theirs, *values, **named)
    with pytest.raises(AttributeError):
        Ours(1).size = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="'y'"):
        Ours(1)._replace(y=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Ours._make([1])
    maker: Any = type(Ours)
    with pytest.raises(TypeError, match="without a default"):
        maker("Wrong", (NamedTuple,), {"__annotations__": {"a": int, "b": int}, "a": 1})


def test_fields_of_the_same_name_are_taken_from_anything_that_has_them() -> None:
    class Larger(NamedTuple):
        twice: int
        name: str
        other: float = 0.0

    assert same(Larger, Ours(2, "a")) == {
        "twice": 4,
        "name": "a",
    }  # a property counts, what is missing does not
    assert Larger(**same(Larger, Ours(2, "a"))) == Larger(4, "a")
