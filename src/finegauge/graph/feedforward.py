"""Operators of dense feed-forwards, and the activation that experts share with them.

A gated feed-forward keeps its input, gate, activation, up and (if down trains or is
adapted) their product: 2(H + 4F) bytes per token in 16 bit.
"""

from finegauge.graph.blocks import FeedForward
from finegauge.graph.tape import Alive, Tape

# Values per channel that an activation keeps, beside the product it feeds to the next projection.
# One kernel keeps its input, and a gated one also its result and `up` (all others: 1 and 3); an
# activation written out in PyTorch keeps what each of its steps needs.
ACTIVATION_KEEPS = {"gelu_new": 4.0, "clamped_swiglu": 6.0, "xielu": 4.5}
# Values per channel alive where nothing is kept, and beside what is kept backward: one kernel's input and
# result; written out, the steps between them too.
PASSING = {"gelu_new": 4.0, "xielu": 5.5, "bloom_gelu": 5.0}
BACKWARD = {"gelu_new": 3.0, "xielu": 4.0, "bloom_gelu": 6.0}
AUTOCAST_ALIVE = {"gelu_new": (6.0, 6.0)}  # the same two
AUTOCAST_KEEPS = {
    "gelu_new": 7.0,
    "relu2": 3.0,
    "xielu": 7.5,
}  # autocast takes powers in fp32, of a copy that is kept
GATED_KEEPS, PLAIN_KEEPS = 3.0, 1.0


def feedforward(tape: Tape, block: FeedForward) -> None:
    """Add a dense feed-forward to the tape, its input already normalised."""
    low, part, width = tape.lowering, block.path, float(block.intermediate_size)
    *ups, down = block.projections
    kept = tape.kept_entry(block.hidden_size, *ups, part=part)
    for i, projection in enumerate(ups):
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i, beside=i * width)
    held = block.hidden_size + (width if block.gated and len(ups) == 1 else 0.0)  # the gate beside `up`
    activation(tape, part, width, block.activation, gated=block.gated, held=held)
    kept = low.kept_input(width, down, part=part)
    if block.activation == "relu" and not block.gated:
        kept = 0.0  # its input is ReLU's result, which ReLU keeps itself
    tape.linear(part, down, keeps=kept)


def activation(tape: Tape, part: str, width: float, name: str, *, gated: bool, held: float) -> None:
    """Add the activation and, if gated, the product with `up`, over `width` channels per token.

    `held` channels of the module's input are alive until it returns.
    """
    low = tape.lowering
    w = width * low.returned_bytes
    entry = held * low.returned_bytes
    name = "gelu" if low.megatron and name.startswith("gelu") else name  # one kernel, whichever form of it
    kept = ACTIVATION_KEEPS.get(name, GATED_KEEPS if gated else PLAIN_KEEPS)
    if low.autocast and not gated:
        kept = AUTOCAST_KEEPS.get(name, kept)
    if name == "xielu" and not low.weights_train:  # one value less, in fp32 under autocast: no factor trains
        kept -= low.activation_bytes / low.compute_bytes
    if low.fused_activation and gated:
        tape.elementwise(
            (part, "activation"), 3 * w, 5 * w, launches=1, saved=2 * w,
            alive=Alive(w, 3 * w, 3 * w + entry),
        )  # fmt: skip
    elif gated:
        steps = kept / GATED_KEEPS
        tape.elementwise(
            (part, "activation"),
            5 * w * steps,
            9 * w * steps,
            launches=2 * steps,
            backward_launches=3 * steps,
            saved=kept * w,
            alive=Alive(w, 3 * w * steps, 3 * w * steps + entry),
        )
    else:
        steps = kept / PLAIN_KEEPS
        passing, back = PASSING.get(name, 2.0), BACKWARD.get(name, 2.0)
        if low.autocast:
            passing, back = AUTOCAST_ALIVE.get(name, (passing, back))
        tape.elementwise(
            (part, "activation"),
            2 * w * steps,
            3 * w * steps,
            launches=steps,
            backward_launches=steps,
            saved=kept * w,
            alive=Alive(w, back * w, passing * w + entry),
        )
