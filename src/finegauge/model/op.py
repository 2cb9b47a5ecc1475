"""One operator: what it computes, moves, launches and keeps, forward and backward.

Every quantity is linear in the extents of a batch (sequences B, tokens T = B·S, query-key
pairs P = sum of S²), so it is a polynomial in (B, S), a whole graph is a matrix, and a
million batches are one matrix product.
"""

from collections.abc import Callable, Sequence
from typing import Any

from finegauge.arithmetic import largest, smallest, where
from finegauge.profile import Path
from finegauge.records import NamedTuple


class Extents(NamedTuple):
    """The sizes of one micro-batch that operators scale with.

    `pairs` counts query-key pairs without causality (S² per sequence); a causal kernel
    halves its FLOPs. `longest_tokens` is the longest sequence, which window attention needs.
    Each may be an array, one number per micro-batch of a search.
    """

    sequences: float
    tokens: float
    pairs: float
    longest_tokens: float

    @classmethod
    def of(cls, sequences: float, seq_len: float) -> "Extents":
        """Return the extents of `sequences` sequences of `seq_len` tokens each."""
        tokens = sequences * seq_len
        return cls(sequences, tokens, tokens * seq_len, seq_len)

    def part(self, share: float) -> "Extents":
        """Return the extents of a share of the sequences."""
        return Extents(share * self.sequences, share * self.tokens, share * self.pairs, self.longest_tokens)

    def windowed(self, window: int | None) -> "Extents":
        """Return the extents in which every query sees at most `window` keys.

        A causal sequence of length l has l·w - w²/2 pairs within the window, l²/2
        without; `pairs` is twice that, so that one formula serves both.
        """
        if window is None:
            return self
        pairs = largest(0.0, 2.0 * self.tokens * window - self.sequences * window * window)
        seen = smallest(self.pairs, pairs)
        return self._replace(pairs=where(window >= self.longest_tokens, self.pairs, seen))


TILE_TOKENS = 4096.0  # of a tile of logits in a loss over tiles: trl/kernels/chunked_logprob.py of TRL 1.15


class Poly(NamedTuple):
    """const + sequence·B + token·T + pair·P + length·S, S the longest sequence, + single·T where B is one.

    And + tile·T up to the tokens of one tile.
    """

    const: float = 0.0
    sequence: float = 0.0
    token: float = 0.0
    pair: float = 0.0
    length: float = 0.0
    single: float = 0.0
    tile: float = 0.0

    def at(self, extents: Extents) -> float:
        """Return the value for one micro-batch."""
        value = self.const
        if self.sequence:
            value = value + self.sequence * extents.sequences
        if self.token:
            value = value + self.token * extents.tokens
        if self.pair:
            value = value + self.pair * extents.pairs
        if self.length:
            value = value + self.length * extents.longest_tokens
        if self.single:
            value = value + where(extents.sequences == 1, self.single * extents.tokens, 0.0)
        if self.tile:
            value = value + self.tile * smallest(extents.tokens, TILE_TOKENS)
        return value

    def plus(self, other: "Poly") -> "Poly":
        """Return the sum."""
        a, b, c, d, e, f, g = self
        return Poly(
            a + other.const,
            b + other.sequence,
            c + other.token,
            d + other.pair,
            e + other.length,
            f + other.single,
            g + other.tile,
        )

    def of_sequences(self) -> "Poly":
        """Return the same of one row of every sequence, in place of one of every token."""
        return self._replace(sequence=self.sequence + self.token, token=0.0)

    def times(self, factor: float) -> "Poly":
        """Return the multiple."""
        a, b, c, d, e, f, g = self
        return Poly(a * factor, b * factor, c * factor, d * factor, e * factor, f * factor, g * factor)


ZERO = Poly()


def per_token(value: float) -> Poly:
    """Return a quantity of `value` per token."""
    return Poly(token=value)


class Gemm(NamedTuple):
    """The shape of a matrix product [m, k] x [k, n]; m rows per token, in `groups` of equal size."""

    rows_per_token: float
    n: int
    k: int
    groups: int = 1


class Cost(NamedTuple):
    """The work of one direction of one operator on the device and on the host."""

    flops: Poly = ZERO
    bytes: Poly = ZERO  # read and written
    launches: float = 0.0
    calls: float = 0.0  # Python-level module calls (adapters, quantised linears)
    gemms: tuple[Gemm, ...] = ()


NOTHING = Cost()


class Op(NamedTuple):
    """One operator of one layer.

    `saved_bytes` is what autograd keeps for backward because of it; `stash_bytes` is the
    part of that which checkpointing cannot discard, and `keeps_input` says that its own
    input itself is kept, not a copy. Alive only at the worst moment of one of its passes,
    beside what is kept, beside the residual stream (forward) or its gradient (backward)
    and beside the gradients of weights, are `live_forward_bytes`, `live_backward_bytes`
    (gradients that come in and go out, temporaries) and, where nothing is kept because
    the pass will be run again, `passing_bytes`. `gradient_bytes` are the gradients of the
    weights that train in it. `lingering_bytes` are held by the layer's own code until it
    returns, where autograd keeps no such thing. `enclosed`: one kernel computes it with its
    neighbours, and hands over what autograd keeps when all of it is done. `generation` of an
    attention kernel is FlashAttention's: 1 also for Triton's, 3 also for cuDNN's; 0 stands for PyTorch's
    memory-efficient kernel.
    """

    path: Path
    kind: str  # gemm grouped_gemm attention scan norm elementwise gather softmax convolution dequantise loss
    forward: Cost
    backward: Cost = NOTHING
    saved_bytes: Poly = ZERO
    stash_bytes: Poly = ZERO
    live_forward_bytes: Poly = ZERO
    live_backward_bytes: Poly = ZERO
    passing_bytes: Poly = ZERO
    gradient_bytes: float = 0.0
    lingering_bytes: Poly = ZERO
    keeps_input: bool = False
    dtype: str = "bf16"
    window: int | None = None
    enclosed: bool = False
    synchronises: bool = False  # its forward waits for the device (a data-dependent shape)
    reads_4bit: bool = False  # a product with 4-bit weights as they are, none dequantised before
    heads: int = 0  # of attention: query heads
    drops_input: bool = False  # an adapter that reads its input through dropout
    generation: int = 2  # of an attention kernel
    is_sdpa: bool = False  # that kernel is what PyTorch itself brings

    def of_sequences(self) -> "Op":
        """Return the same operator over one row of every sequence."""
        return self._each(Poly.of_sequences, gemms=False)

    def of_pairs(self, times: float) -> "Op":
        """Return the same operator over so many times the pairs: queries of one text, keys of another."""
        return self._each(lambda poly: poly._replace(pair=times * poly.pair), gemms=True)

    def _each(self, change: Callable[[Poly], Poly], *, gemms: bool) -> "Op":
        changed: dict[str, Any] = {}
        for name in ("forward", "backward"):
            cost = getattr(self, name)
            kept = cost.gemms if gemms else ()
            changed[name] = cost._replace(flops=change(cost.flops), bytes=change(cost.bytes), gemms=kept)
        for name in ("saved_bytes", "live_forward_bytes", "live_backward_bytes", "passing_bytes"):
            changed[name] = change(getattr(self, name))
        return self._replace(lingering_bytes=change(self.lingering_bytes), **changed)


def saved_bytes(ops: Sequence[Op], extents: Extents) -> float:
    """Return the bytes that autograd keeps because of `ops`."""
    total = 0.0
    for op in ops:
        total = total + op.saved_bytes.at(extents)
    return total
