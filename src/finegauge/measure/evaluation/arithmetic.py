"""Additions and subtractions that a model of a million parameters learns in a minute.

"34+58=" is asked as 43+85= and answered 290: the digit of the ones comes first, so that each
digit of the answer needs only what stands before it. Every number has the same number of
digits, zeros included. The choices are the answer and three near it, off by one or by ten. Train
and test share no pair of numbers, in either order.
"""

from random import Random

from finegauge.errors import FieldError
from finegauge.measure.evaluation.questions import Choice, Ids, Question, Task

ALPHABET = "0123456789+-="
OPERATIONS = ("+", "-")
NUM_CHOICES = 4


def arithmetic(
    operation: str = "+", *, num_train: int = 4000, num_test: int = 200, digits: int = 2, seed: int = 0
) -> Task:
    """Return the task of one operation on numbers of `digits` digits.

    Args:
        operation: "+", or "-" for the distance of the two numbers.
        num_train: Questions to learn from.
        num_test: Questions to be asked.
        digits: Of either number.
        seed: Of which questions are drawn.
    Raises: FieldError where there are fewer questions than asked for.
    """
    largest = 10**digits
    pairs = [(one, other) for one in range(largest) for other in range(one, largest)]
    if operation not in OPERATIONS or not 0 < num_test < len(pairs) or num_train < 1:
        raise FieldError(
            f"arithmetic takes one of {' '.join(OPERATIONS)}, at least 1 question to learn from, and 1 to "
            f"{len(pairs) - 1:,} to be asked at {digits} digits."
        )
    draw = Random(seed)
    draw.shuffle(pairs)
    known = [pair for one, other in pairs[num_test:] for pair in {(one, other), (other, one)}]
    if num_train > len(known):
        raise FieldError(
            f"{num_train:,} questions to learn from are asked for, but {digits} digits give {len(known):,} "
            f"beside {num_test:,} in the test; use fewer, or more digits."
        )
    draw.shuffle(known)
    asked = [pair if draw.random() < 0.5 else pair[::-1] for pair in pairs[:num_test]]
    return Task(
        f"arithmetic {operation}",
        [_question(operation, pair, digits, draw) for pair in known[:num_train]],
        [_question(operation, pair, digits, draw) for pair in asked],
    )


def encode(text: str) -> Ids:
    """Return the token ids of a text of the alphabet."""
    return tuple(map(ALPHABET.index, text))


def decode(ids: Ids) -> str:
    """Return the text of token ids, "?" for those outside the alphabet."""
    return "".join(ALPHABET[i] if 0 <= i < len(ALPHABET) else "?" for i in ids)


def _question(operation: str, pair: tuple[int, int], digits: int, draw: Random) -> Question:
    """Return one question with its choices in random order."""
    one, other = pair
    value = one + other if operation == "+" else abs(one - other)
    highest = 2 * 10**digits - 1
    near = [v for v in (value + 1, value - 1, value + 10, value - 10) if 0 <= v <= highest]
    values = [value, *draw.sample(near, min(NUM_CHOICES - 1, len(near)))]
    draw.shuffle(values)
    written = [_reversed(v, digits + 1) for v in values]
    return Question(
        encode(f"{_reversed(one, digits)}{operation}{_reversed(other, digits)}="),
        encode(_reversed(value, digits + 1)),
        tuple(Choice(encode(text), len(text)) for text in written),
        values.index(value),
    )


def _reversed(value: int, digits: int) -> str:
    """Return a number with its ones first, filled up with zeros."""
    return f"{value:0{digits}d}"[::-1]
