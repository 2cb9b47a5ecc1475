"""What ZeRO-3 has sent for at once, against the messages that DeepSpeed was seen to send."""

from pathlib import Path

import pytest

from benchmarks.moments import cells
from finegauge.prediction.prefetch import (
    NO_MESSAGES,
    ON_THEIR_WAY,
    Messages,
    messages_of,
    worst_of_forward,
)
from finegauge.prediction.sharding import share_of, zero3_messages
from finegauge.profile import Breakdown
from finegauge.run.run import Run

EMBEDDING = 8_192_000.0
LAYERS = 135_408_640.0 - EMBEDDING


def test_the_last_message_is_the_rest() -> None:
    """DeepSpeed 0.19.8 sent 51.46, 50.32 and 33.63 million values: the first two end with a whole tensor."""
    found = messages_of(LAYERS * 2, (EMBEDDING * 2, 0.0), 2.0)
    assert found.largest_bytes == 2 * 5e7
    assert found.last_bytes / 2 == pytest.approx(33_630_208, rel=0.06)
    # the last full one was let go in layer 8 or 9 of 11
    assert 8 / 11 - 0.01 < found.layers_fraction < 8 / 11


@pytest.mark.parametrize("values", [1e6, 5e7])
def test_a_small_model_comes_in_one_message(values: float) -> None:
    assert messages_of(2 * values, (0.0, 0.0), 2.0) == Messages(2 * values, 2 * values, 1.0)


def test_what_is_freed_is_sent_for_anew() -> None:
    """Beyond stage3_max_live_parameters messages are under way to the end of the pass."""
    assert messages_of(8e9, (5e8, 5e8), 2.0) == Messages(1e8, 1e8, 1.0)


def test_the_worst_is_before_the_end_where_layers_keep_little() -> None:
    messages, kept = Messages(100.0, 60.0, 0.75), ("activations", "all layers")
    for activations, worst in ((80.0, 160.0), (400.0, 460.0)):
        held = Breakdown({kept: activations, ON_THEIR_WAY: messages.largest_bytes})
        assert worst_of_forward(held, messages, 1, (), 0.0, 0.0).total == worst


def test_fsdp_has_a_layer_three_times_before_the_last_runs() -> None:
    """Four processes, LoRA, 133 million parameters: torch gave 248 MiB, of which 240 in the last layer."""
    gathered, kept, passing = ("workspace", "gathered weights"), ("activations", "all layers"), "passing"
    held = Breakdown({gathered: 59.7, kept: 107.0, ("activations", passing): 4.4, ("weights", "model"): 69.1})
    found = worst_of_forward(held, NO_MESSAGES, 11, gathered, 21.9, 1.0)
    assert found.total == pytest.approx(248, rel=0.01)
    assert found.parts[gathered] == 59.7 + 21.9
    assert (
        worst_of_forward(held, NO_MESSAGES, 11, gathered, 10.0, 1.0) == held
    )  # smaller layers: in the last one


def test_a_pass_begins_with_what_it_frees(tmp_path: Path) -> None:
    """LoRA, 67 million parameters: DeepSpeed freed the frozen embedding after its look-up."""
    run = next(one for one in cells() if one.name == "2 zero3 lora 67M").run(tmp_path)
    first_projections = 2.0 * 3 * 768 * 768  # of queries, keys and values: their input needs no gradient
    assert zero3_messages(share_of(run)).released_bytes == 2.0 * 16_000 * 768 + first_projections
    checkpointed = run.replace(activation_checkpointing="full")  # whose inputs are made to need one
    assert zero3_messages(share_of(checkpointed)).released_bytes == 0.0
    tied = Run(model="Qwen2.5-0.5B", method="lora", sharding="zero3", num_gpus=2)  # the head needs it again
    assert zero3_messages(share_of(tied)).released_bytes == 2.0 * (896 * 896 + 2 * 128 * 896)
    messages, gathered = Messages(100.0, 60.0, 0.75, released_bytes=70.0), ("workspace", "gathered weights")
    held = Breakdown({("activations", "all layers"): 80.0, gathered: 10.0, ON_THEIR_WAY: 100.0})
    assert worst_of_forward(held, messages, 4, gathered, 0.0, 1.0, 5.0).total == 100.0 + 80.0 + 1.0
