"""The layer clock: sums, unchanged results, every role in forward, recomputation and backward."""

from typing import Any

import peft
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from finegauge.measurement.instruments.clocks import LayerClock, NoClock, StageClock
from finegauge.profile import Breakdown
from tests.unit.measurement.instruments.tiny import CPU, OneBatch

ATTENTION = {"norm", "q_proj", "k_proj", "v_proj", "rotary", "attention kernel", "o_proj", "residual"}
MASKED = {"forward": ATTENTION | {"mask"}, "backward": ATTENTION}  # the mask is made once, with no gradient
EXPERTS = {"gather tokens", "gate_up_proj", "activation", "down_proj", "weighted sum"}
FUSED = {"norm", "top-k", "gate", "residual"} | EXPERTS


def clocked(phase: OneBatch) -> Breakdown:
    with LayerClock(phase.subject) as clock, clock.step():
        phase.step(clock)
    return clock.steps[0]


def test_a_hybrid_keeps_its_gradients() -> None:
    phase = OneBatch("jamba")
    bare = phase.step(NoClock())
    expected = phase.gradients
    with LayerClock(phase.subject) as clock, clock.step():
        facts = phase.step(clock)
    assert facts.loss == bare.loss
    for name, gradient in phase.gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6)


def operators(step: Breakdown, stage: str, part: str) -> set[str]:
    return {path[2] for path in step.parts if path[:2] == (stage, part)}


@pytest.mark.parametrize("checkpointing", [None, False, True])
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_loss_and_gradients_are_unchanged(family: str, checkpointing: bool | None) -> None:
    loop = {} if family == "llama" else {"experts_implementation": "eager"}
    phase = OneBatch(family, checkpointing=checkpointing, dtype=torch.float64, **loop)
    bare = phase.step(NoClock())
    expected = phase.gradients
    with LayerClock(phase.subject) as clock, clock.step():
        facts = phase.step(clock)
    assert facts.loss == bare.loss
    assert phase.gradients.keys() == expected.keys()
    for name, gradient in phase.gradients.items():  # to rounding: sums are taken in another order
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_llama_is_taken_apart(stage: str) -> None:
    step = clocked(OneBatch("llama"))
    assert operators(step, stage, "attention") == MASKED[stage]
    mlp = {"norm", "gate_proj", "up_proj", "activation", "down_proj", "residual"}
    assert operators(step, stage, "mlp") == mlp
    assert operators(step, stage, "head") == {"norm", "lm_head"}
    assert operators(step, stage, "loss") == {"cross entropy"}
    assert "look up" in operators(step, stage, "embedding")


@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_a_mixture_is_taken_apart(experts: str, stage: str) -> None:
    step = clocked(OneBatch("mixtral", experts_implementation=experts))
    assert operators(step, stage, "moe") == FUSED
    assert operators(step, stage, "attention") == MASKED[stage]


def test_eager_attention_is_a_kernel_from_its_first_product_on() -> None:
    step = clocked(OneBatch("llama", attn_implementation="eager"))
    for stage in ("forward", "backward"):
        assert operators(step, stage, "attention") == MASKED[stage]


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_hybrid_is_taken_apart(stage: str) -> None:
    step = clocked(OneBatch("jamba"))
    mamba = operators(step, stage, "mamba")
    assert mamba >= {"norm", "in_proj", "convolution", "x_proj", "scan", "out_proj", "residual"}
    assert operators(step, stage, "attention") >= {"norm", "q_proj", "attention kernel", "o_proj"}
    assert operators(step, stage, "mlp") >= {"gate_proj", "down_proj", "activation"}
    assert operators(step, stage, "moe") == FUSED - {"gate"} | {"router"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers_are_taken_apart_too(reentrant: bool) -> None:
    phase = OneBatch("mixtral", checkpointing=reentrant)
    step = clocked(phase)
    again = operators(step, "recompute", "moe")
    assert again >= {"norm", "gate", "top-k", "gate_up_proj", "activation", "down_proj"}
    assert operators(step, "backward", "moe") >= {"gate_up_proj", "down_proj", "norm"}
    assert not operators(step, "recompute", "head")


def test_parts_add_up_to_the_step_and_name_the_optimizer() -> None:
    phase = OneBatch("llama")
    with LayerClock(phase.subject) as clock:
        for _ in range(2):
            with clock.step():
                phase.step(clock)
    step = clock.steps[1]
    assert step.total == pytest.approx(
        sum(step[stage] for stage in ("forward", "backward", "optimizer", "other"))
    )
    assert ("optimizer", "parameters", "adamw") in step.parts
    assert ("other",) in step.parts


@pytest.mark.parametrize("path", ["self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj"])
def test_work_is_counted_where_it_is_done(path: str) -> None:
    """What one module does more, in forward and backward, is counted as its own and nobody else's."""
    plain = in_operators(OneBatch("llama"))
    phase = OneBatch("llama")
    layer = phase.subject.model.model.layers[0]
    owner = layer.get_submodule(path.partition(".")[0])
    name = path.partition(".")[2]
    setattr(owner, name, _Laborious(getattr(owner, name)))
    more = in_operators(phase)
    gained = {key: more.parts[key] - value for key, value in plain.parts.items() if key[0] != "optimizer"}
    role = ("attention" if "attn" in path else "mlp", name)
    assert gained.pop(("forward", *role)) == 50.0
    assert gained.pop(("backward", *role)) == 100.0  # cosine and product
    assert set(gained.values()) == {0.0}


def in_operators(phase: OneBatch) -> Breakdown:
    """Return a step taken apart, in operators in place of seconds."""
    with (
        Operators() as counted,
        LayerClock(phase.subject, instants=counted) as clock,
        clock.step(),
    ):
        phase.step(clock)
    return clock.steps[0]


class Operators(TorchDispatchMode):
    """Instants by the number of operators that have run."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))

    def now(self) -> int:
        return self.count

    def seconds(self, begin: int, end: int) -> float:
        return float(end - begin)

    def settle(self) -> None:
        pass

    def forget(self) -> None:
        pass


class _Laborious(torch.nn.Linear):
    """A linear that does much beside."""

    def __init__(self, like: Any) -> None:
        super().__init__(like.in_features, like.out_features, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.linear(states, self.weight)
        for _ in range(50):
            wide = wide.sin()
        return wide


def test_adapters_have_an_operator_of_their_own() -> None:
    phase = OneBatch("mixtral")
    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj", "v_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    model = peft.get_peft_model(phase.subject.model, config)
    phase.subject = phase.subject._replace(model=model)
    step = clocked(phase)
    for stage in ("forward", "backward"):
        for part in ("attention", "moe"):
            assert "adapter" in operators(step, stage, part)
        assert {"q_proj", "v_proj"} <= operators(step, stage, "attention")
        assert {"gate_up_proj", "down_proj"} <= operators(step, stage, "moe")


def test_dequantisation_is_told_apart() -> None:
    import bitsandbytes

    phase = OneBatch("llama")
    for layer in phase.subject.model.model.layers:
        made = bitsandbytes.nn.Linear4bit(32, 64, bias=False, compute_dtype=torch.float32, quant_type="nf4")
        made.weight = bitsandbytes.nn.Params4bit(
            layer.mlp.up_proj.weight.data, requires_grad=False, quant_type="nf4"
        )
        layer.mlp.up_proj = made.to("cpu")
    step = clocked(phase)
    for stage in ("forward", "backward"):
        assert {"dequantise", "up_proj"} <= operators(step, stage, "mlp")


def test_everything_is_as_before_when_the_clock_stops() -> None:
    phase = OneBatch("mixtral")
    functions = (torch.nn.functional.linear, torch.matmul, torch.baddbmm, torch.Tensor.index_add_)
    own = dict(vars(torch.Tensor))
    with LayerClock(phase.subject):
        assert torch.nn.functional.linear is not functions[0]
    assert (
        torch.nn.functional.linear,
        torch.matmul,
        torch.baddbmm,
        torch.Tensor.index_add_,
    ) == functions
    assert dict(vars(torch.Tensor)) == own
    assert not any("forward" in vars(module) for module in phase.subject.model.modules())


def test_a_failure_inside_leaves_no_record_and_no_hooks() -> None:
    phase = OneBatch("llama")
    clock = LayerClock(phase.subject)
    with pytest.raises(ZeroDivisionError), clock, clock.step(), clock.stage("forward"):
        raise ZeroDivisionError
    assert not clock.steps
    with clock, clock.step():
        phase.step(clock)
    assert len(clock.steps) == 1


def test_stages_do_not_nest_under_the_layer_clock_either() -> None:
    clock = LayerClock(OneBatch("llama").subject)
    with clock.step(), clock.stage("forward"):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="inside stage"):
            with clock.stage("backward"):
                pass


def test_generation_has_parts_but_no_backward() -> None:
    phase = OneBatch("llama")
    with LayerClock(phase.subject) as clock, clock.step(), clock.stage("decode"), torch.no_grad():
        phase.subject.model(input_ids=phase.ids)
    step = clock.steps[0]
    assert {path[0] for path in step.parts} == {"decode", "other"}
    assert operators(step, "decode", "attention") == MASKED["forward"]


def test_other_models_are_outside_the_model() -> None:
    phase, other = OneBatch("llama"), OneBatch("llama")
    with LayerClock(phase.subject) as clock, clock.step(), clock.stage("scoring"), torch.no_grad():
        other.subject.model(input_ids=phase.ids)
    assert set(clock.steps[0].parts) == {("scoring", "outside the model"), ("other",)}


def test_every_model_that_is_named_is_taken_apart() -> None:
    phase, other = OneBatch("llama"), OneBatch("llama")
    models = (phase.subject.model, other.subject.model)
    with (
        Operators() as counted,
        LayerClock(phase.subject, *models, instants=counted) as clock,
        torch.no_grad(),
    ):
        for running in ((models[0],), (models[1],), models):
            with clock.step(), clock.stage("scoring"):
                for model in running:
                    torch.log_softmax(model(input_ids=phase.ids).logits, -1)
    own, others, both = (step.parts for step in clock.steps)
    assert own == others
    assert ("scoring", "loss", "cross entropy") in own
    assert {path[1] for path in own if path[1:]} >= {"attention", "mlp", "head", "embedding"}
    positions = ("scoring", "embedding", "positions")
    assert {path: both[path] for path in both if path != positions and path[1:]} == {
        path: 2 * own[path] for path in own if path != positions and path[1:]
    }


def test_a_scalar_head_is_a_score_and_what_follows_it_no_loss_of_scoring() -> None:
    phase = OneBatch("llama")
    phase.subject.model.set_output_embeddings(torch.nn.Linear(32, 1, bias=False))
    with (
        Operators() as counted,
        LayerClock(phase.subject, instants=counted) as clock,
        torch.no_grad(),
    ):
        for stage in ("scoring", "forward"):
            with clock.step(), clock.stage(stage):
                scores = phase.subject.model(input_ids=phase.ids).logits
                for _ in range(50):
                    scores = scores.sin()
    scoring, forward = clock.steps
    assert operators(scoring, "scoring", "head") == {"norm", "score"}
    assert scoring.parts["scoring", "outside the model"] >= 50.0
    assert forward.parts["forward", "loss", "cross entropy"] >= 50.0


def test_an_argument_just_made_needs_no_view() -> None:
    """Of the inputs of a layer's linears only those of k, v and up come second; the norms' come first."""
    phase = OneBatch("llama")
    clock = LayerClock(phase.subject)
    seen: list[bool] = []
    entering = clock.entering

    def watched(value: Any) -> Any:
        given = entering(value)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            seen.append(given is not value)
        return given

    clock.entering = watched  # type: ignore[method-assign]
    with clock, clock.step():
        phase.step(clock)
    assert sum(seen) <= 2 * 6 < len(seen)  # two layers: k, v, up, and q, k, v of the kernel


def test_the_stage_clock_sees_the_same_stages() -> None:
    phase = OneBatch("mixtral", checkpointing=False)
    with StageClock(CPU, phase.subject.model) as stages, stages.step():
        phase.step(stages)
    assert set(clocked(phase).at(1).parts) == set(stages.steps[0].parts)
