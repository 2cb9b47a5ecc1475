"""The figures of a `config.json`, checked before anything is built from them.

A key that the file leaves out takes the default of the transformers class, which each row of the
tables writes down; a value that no model can have is refused in one sentence.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finegauge.errors import FieldError, UnsupportedError, shown

Config = Mapping[str, Any]

MAX_LAYERS = 10_000  # the deepest published decoders have about 130
MAX_SIZE = 2**27  # no vocabulary, width or context that is published comes near


class Figures:
    """The figures of one model: what its file says, else what its class says.

    Args:
        config: The parsed `config.json`.
        defaults: Values of keys that the file may leave out.
        aliases: The name of a key in this family's files, where it is another.
        model_type: Of the whole model, for messages; by default that of `config`.
    """

    __slots__ = ("aliases", "config", "defaults", "model_type")

    def __init__(
        self,
        config: Config,
        defaults: Config,
        aliases: Mapping[str, str] | None = None,
        model_type: str = "",
    ) -> None:
        """Keep the mappings; nothing is read yet."""
        self.config = config
        self.defaults = defaults
        self.aliases = aliases or {}
        self.model_type = model_type or str(config.get("model_type", ""))

    def raw(self, key: str) -> Any:
        """Return what stands under the key's alias or the key, else the default, else None."""
        name = self.name(key)
        return self.config[name] if name in self.config else self.defaults.get(key)

    def name(self, key: str) -> str:
        """Return the name under which this file has `key`."""
        alias = self.aliases.get(key)
        return alias if alias is not None and alias in self.config else key

    def size(self, key: str, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """Return the whole number under `key`, between `least` and `most`.

        Raises: FieldError naming key and value if there is none, or another.
        """
        value = self.raw(key)
        if value is None:
            raise FieldError(
                f"{key} is missing from the model's config, and the transformers class of "
                f"'{self.model_type}' has no default."
            )
        return self._checked(key, value, least, most)

    def optional(self, key: str) -> int | None:
        """Return the whole number under `key`, or None where it is null or absent."""
        value = self.raw(key)
        return None if value is None else self._checked(key, value, 1, MAX_SIZE)

    def count(self, key: str) -> int:
        """Return the whole number under `key`, which may be zero; null and absent are zero."""
        value = self.raw(key)
        return 0 if value is None else self._checked(key, value, 0, MAX_SIZE)

    def flag(self, key: str | bool) -> bool:
        """Return the truth value under `key`, null and absent false; True and False stand for themselves."""
        value = key if isinstance(key, bool) else self.raw(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        if isinstance(value, int) and value in (0, 1):
            return value == 1
        raise FieldError(f"{self.name(str(key))}={shown(value)} is not a truth value; give true or false.")

    def text(self, key: str) -> str:
        """Return the text under `key`."""
        value = self.raw(key)
        if isinstance(value, str):
            return value
        raise FieldError(f"{self.name(key)}={shown(value)} is not a text.")

    def ratio(self, key: str) -> float:
        """Return the positive number under `key`, whole or not."""
        value = self.raw(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_SIZE:
            return float(value)
        raise FieldError(f"{self.name(key)}={shown(value)} is not a positive number.")

    def items(self, key: str) -> Sequence[Any] | None:
        """Return the list under `key`, or None where it is null or absent."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and len(value) <= MAX_LAYERS:
            return value
        raise FieldError(f"{self.name(key)}={shown(value)} is not a list of at most {MAX_LAYERS:,} entries.")

    def sizes(self, key: str, length: int) -> list[int]:
        """Return `length` whole numbers under `key`; a single number stands for all of them."""
        value = self.raw(key)
        if not isinstance(value, (list, tuple)):
            return [self.size(key)] * length
        if len(value) != length:
            raise FieldError(f"{key} has {len(value)} entries for {length} layers; give one per layer.")
        return [self._checked(key, entry, 1, MAX_SIZE) for entry in value]

    def num_layers(self, key: str = "num_hidden_layers") -> int:
        """Return the number of layers, at most `MAX_LAYERS` so that nothing hangs."""
        return self.size(key, most=MAX_LAYERS)

    def layer_kinds(
        self, default: Callable[[int], str], known: Sequence[str], key: str = "layer_types"
    ) -> list[str]:
        """Return the kind of every layer: what the list under `key` says, else `default(index)`.

        Raises: FieldError for a list of another length; UnsupportedError for a kind not in `known`.
        """
        num_layers = self.num_layers()
        listed = self.items(key)
        if listed is None:
            return [default(index) for index in range(num_layers)]
        if len(listed) != num_layers:
            raise FieldError(
                f"{key} has {len(listed)} entries, but num_hidden_layers={num_layers}; give one per layer."
            )
        for kind in listed:
            if kind not in known:
                raise UnsupportedError(
                    f"model_type '{self.model_type}': {key} has {shown(kind)}; "
                    f"described are {', '.join(known)}."
                )
        return list(listed)

    def divided(self, key: str, value: int, by_key: str, by: int) -> int:
        """Return `value / by`, or raise FieldError naming both keys if a rest remains."""
        if value % by:
            raise FieldError(f"{key}={value} is not divisible by {by_key}={by}.")
        return value // by

    def part(self, key: str, defaults: Config) -> "Figures":
        """Return the figures of the nested config under `key` (`text_config`), empty if absent."""
        value = self.config.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise FieldError(f"{self.name(key)}={shown(value)} is not a mapping of figures.")
        return Figures(value, defaults, self.aliases, self.model_type)

    def unsupported(self, what: str) -> UnsupportedError:
        """Return the error that says which variant of this family is not described."""
        return UnsupportedError(f"model_type '{self.model_type}': {what} is not described yet.")

    def _checked(self, key: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise FieldError(f"{self.name(key)}={shown(value)} is not a whole number from {least} to {most:,}.")
