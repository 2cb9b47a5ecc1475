"""`NamedTuple` as in typing, made in a tenth of the time: a command starts with a hundred of them.

typing's compiles a constructor for every class when its module is imported. Here a class compiles its own
once it has made a few tuples, which most classes of a command never do.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

__all__ = ["NamedTuple", "same"]

FEW = 16


def same(kind: Any, one: Any) -> dict[str, Any]:
    """Return what `one` has under the names of fields of `kind`."""
    return {name: getattr(one, name) for name in kind._fields if hasattr(one, name)}


if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import _tuplegetter

    class _Fields(type):
        """Makes a class of tuples from its annotations, in their order, with the defaults given there."""

        def __new__(cls, name, bases, body):
            if not bases or bases[0].__bases__ != (tuple,):  # no fields of its own
                return super().__new__(cls, name, bases or (tuple,), body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body.pop(field) for field in fields if field in body}
            if list(defaults) != list(fields[len(fields) - len(defaults) :]):
                raise TypeError(f"{name}: a field without a default follows one that has a default.")
            for place, field in enumerate(fields):
                body[field] = _tuplegetter(place, None)
            body |= {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields, "_num_made": 0}
            body.setdefault("__slots__", ())
            return super().__new__(cls, name, bases, body)

    class NamedTuple(metaclass=_Fields):
        """A tuple whose items have the names that its class annotates."""

        __slots__ = ()
        _fields = ()

        def __new__(cls, /, *values, **named):
            """Make one of the first tuples of a class."""
            if not named and len(values) == len(cls._fields) and cls._num_made < FEW:
                cls._num_made += 1
                return tuple.__new__(cls, values)
            named_fields = cls._fields[len(values) :]
            if cls._num_made < FEW and len(values) <= len(cls._fields) and named.keys() <= {*named_fields}:
                given = cls._field_defaults | named
                if given.keys() >= {*named_fields}:
                    cls._num_made += 1
                    return tuple.__new__(cls, (*values, *map(given.__getitem__, named_fields)))
            return cls._constructor()(cls, *values, **named)

        @classmethod
        def _constructor(cls):
            """Compile the constructor of the class, which checks what it is given."""
            owner = next(each for each in cls.__mro__ if "_fields" in each.__dict__)
            names = ",".join([*cls._fields, ""])
            made = eval(f"lambda _cls, {names}: _new(_cls, ({names}))", {"_new": tuple.__new__})
            made.__name__, made.__qualname__ = "__new__", f"{owner.__qualname__}.__new__"
            made.__defaults__ = tuple(cls._field_defaults.values()) or None
            owner.__new__ = made
            return made

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self:
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changes: Any) -> Self:
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def __repr__(self) -> str:
            values = ", ".join([f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)])
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)
