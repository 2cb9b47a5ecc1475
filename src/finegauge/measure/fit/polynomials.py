"""From quantities at a few batch sizes to the polynomial in (1, B, T, P) that runs through them."""

from collections.abc import Sequence

Point = tuple[int, int]  # sequences, length
SHORTEST = 16  # for classes that loop over tokens in Python
CHUNK = 256  # the longest chunk in which state-space layers work; lengths are multiples of it


def points(length: int) -> tuple[Point, ...]:
    """Return the batches to run from the shortest length on; the last one only checks the polynomial."""
    return ((1, length), (1, 2 * length), (1, 4 * length), (2, length), (3, 2 * length))


NOISE = 1e-9  # of the largest value: what elimination leaves of an exact zero


def through(values: Sequence[float], ran: Sequence[Point]) -> tuple[list[float], float]:
    """Return (coefficients of 1, B, T, P, relative error at the fifth point if there is one).

    `values` are those at the batches that `ran`.
    """
    scale = max(map(abs, values), default=0.0)
    if not scale:
        return [0.0] * 4, 0.0
    rows = [[*_basis(point), value] for point, value in zip(ran[:4], values[:4], strict=True)]
    coefficients = _solved(rows)
    for index, (coefficient, size) in enumerate(zip(coefficients, _basis(ran[3]), strict=True)):
        if abs(coefficient * size) < NOISE * scale:
            coefficients[index] = 0.0
    if len(ran) == 4:
        return coefficients, 0.0
    told = sum(c * b for c, b in zip(coefficients, _basis(ran[4]), strict=True))
    return coefficients, abs(told - values[4]) / scale


def _basis(point: Point) -> list[float]:
    sequences, length = point
    tokens = float(sequences * length)
    return [1.0, float(sequences), tokens, tokens * length]


def _solved(rows: list[list[float]]) -> list[float]:
    """Return the solution of a linear system, by elimination with the largest pivot first."""
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
