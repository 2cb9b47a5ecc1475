"""Passes over operators, by hand."""

from finegauge.model.op import NOTHING, Extents, Op, per_token, saved_bytes
from finegauge.prediction.memory import backward_moment, forward_moment, gradient_bytes

ONE = Extents.of(1, 1)
FIRST = Op(
    ("mlp", "up"),
    "gemm",
    NOTHING,
    saved_bytes=per_token(10.0),
    live_forward_bytes=per_token(3.0),
    live_backward_bytes=per_token(4.0),
    passing_bytes=per_token(20.0),
    gradient_bytes=100.0,
)
SUM = Op(("mlp", "residual"), "elementwise", NOTHING)
LAST = Op(
    ("moe", "down"),
    "gemm",
    NOTHING,
    saved_bytes=per_token(50.0),
    live_forward_bytes=per_token(1.0),
    live_backward_bytes=per_token(30.0),
    passing_bytes=per_token(15.0),
    gradient_bytes=7.0,
)
OPS = (FIRST, SUM, LAST)


def test_forward_piles_up_what_is_kept() -> None:
    worst = forward_moment(OPS, ONE, 2.0, keeping=True)
    assert (worst.op, worst.kept_bytes, worst.beside_bytes) == (LAST, 60.0, 1.0 + 2.0)


def test_a_pass_that_keeps_nothing_is_as_large_as_its_largest_operator() -> None:
    worst = forward_moment(OPS, ONE, 2.0, keeping=False)
    assert (worst.op, worst.kept_bytes, sum(worst[:3])) == (FIRST, 0.0, 20.0)


def test_what_lingers_and_what_the_layer_before_left_stand_beside_a_pass_that_keeps_nothing() -> None:
    scores = FIRST._replace(lingering_bytes=per_token(8.0))
    worst = forward_moment((scores, SUM, LAST), ONE, 2.0, keeping=False, held=1.0)
    assert (worst.op, sum(worst[:3])) == (LAST, 15.0 + 2.0 + 8.0 + 1.0)


def test_where_all_is_kept_only_the_branch_itself_lingers() -> None:
    scores, added = (
        FIRST._replace(lingering_bytes=per_token(8.0)),
        SUM._replace(lingering_bytes=per_token(5.0)),
    )
    worst = forward_moment((scores, added, LAST), ONE, 2.0, keeping=True)
    assert (worst.op, worst.beside_bytes) == (LAST, 1.0 + 2.0 + 5.0)


def test_backward_frees_what_was_kept_and_leaves_gradients() -> None:
    worst = backward_moment(OPS, ONE, accumulating=False)
    assert (worst.op, worst.kept_bytes, worst.beside_bytes, worst.made_bytes) == (FIRST, 10.0, 4.0, 107.0)


def test_accumulated_gradients_are_alive_only_until_they_are_added() -> None:
    worst = backward_moment(OPS, ONE, accumulating=True)
    assert (worst.op, sum(worst[:3])) == (FIRST, 10.0 + 4.0 + 100.0)


def test_sums() -> None:
    assert saved_bytes(OPS, ONE) == 60.0
    assert gradient_bytes(OPS) == 107.0
