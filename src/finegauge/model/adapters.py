"""Which weights LoRA's targets mean: the names of modules and of bare parameters that PEFT adapts.

PEFT 0.21 adapts modules. Transformers 5 holds fused experts and their router as bare
parameters, which "all-linear" passes by, except in the model types whose checkpoints
transformers converts the way it converts Mixtral's or Qwen2-MoE's: there PEFT takes the
names of transformers 4 to mean the parameters, and nothing else of that name (neither
shared experts nor dense layers). Elsewhere a name that no module bears means the
parameter that bears it. Gate and up, one tensor now, get the rank of both. Of Mamba layers PEFT
refuses the output projection, and "all-linear" with it: here that means all the others.

Sources: peft 0.21.2, utils/transformers_weight_conversion.py and tuners/tuners_utils.py;
transformers 5.23, conversion_mapping.py (read 2026-11-21).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from finegauge.errors import FieldError
from finegauge.model.blocks import Architecture, Linear, MixtureOfExperts

ALL = "all-linear"
MIXTRAL_NAMES = {"gate": "gate", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
QWEN_NAMES = {
    "gate": "gate",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}
MIXTRAL_TYPES = frozenset({"mixtral", "minimax", "minimax_m2"})
QWEN_TYPES = frozenset(
    {
        *("afmoe", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe"),
        *("exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa"),
        *("hunyuan_v1_moe", "kimi_k2", "longcat_flash", "mellum", "olmoe", "qwen3_moe", "qwen3_next"),
        *("qwen3_omni_moe", "solar_open"),
    }
)
UNFUSED_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # an expert's, apart, here and there
MAMBA_TYPES = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
MAMBA_REFUSED = "out_proj"  # its fused kernel reads the weight and passes by the adapter


class Targets(NamedTuple):
    """The last names of what has an adapter."""

    modules: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    attention: bool = False  # every module of an attention
    doubled: bool = False  # the gate and up of fused experts have the rank of both

    def means(self, linear: Linear, part: str, *, bare: bool) -> bool:
        """Return whether `linear` of the block called `part`, a bare parameter or not, has an adapter."""
        name = last_name(linear.name)
        if bare:
            return name in self.parameters
        return name in self.modules or (self.attention and part == "attention")


def last_name(name: str) -> str:
    """Return what stands after the last dot of a module's or a weight's name."""
    return name.removesuffix(".weight").rpartition(".")[2]


def targets_of(
    asked: Iterable[str], model: Architecture, *, fused_experts: bool, dropout: float = 0.0
) -> Targets:
    """Return what the names in `asked` mean in `model`.

    Raises: FieldError where PEFT refuses them.
    """
    names = {last_name(target) for target in asked}
    attention = "attention" in names
    modules, parameters = _names(model, fused_experts=fused_experts)
    everything, wanted = ALL in names, names - {ALL, "attention"}
    if not fused_experts:
        wanted |= {UNFUSED_NAMES[name] for name in wanted & UNFUSED_NAMES.keys()}
        return Targets(modules if everything else frozenset(wanted), frozenset(), attention)
    rewritten = _rewritten(model.model_type)
    passed_by = {MAMBA_REFUSED} if model.model_type in MAMBA_TYPES else set()
    meant = ((set(modules) | set(rewritten)) - passed_by) if everything else wanted
    _refuse_half(meant, rewritten)
    bare = {rewritten.get(name, name) for name in meant if name in rewritten or name not in modules}
    targets = Targets(
        modules=frozenset(name for name in meant & modules if name not in rewritten),
        parameters=frozenset(bare & parameters),
        attention=attention,
        doubled=any(rewritten.get(name) == "gate_up_proj" for name in meant),
    )
    if dropout and targets.parameters:
        raise FieldError(
            f"lora_dropout={dropout}, but transformers 5 holds {', '.join(sorted(targets.parameters))} as "
            f"parameters, whose adapters PEFT gives no dropout; give lora_dropout=0 or other lora_targets."
        )
    if passed_by & targets.modules:
        others = ",".join(sorted(modules - passed_by))
        raise FieldError(
            f"PEFT refuses LoRA on {MAMBA_REFUSED} of '{model.model_type}', which its fused kernel would "
            f"pass by; give lora_targets={others} or some of these."
        )
    return targets


def _rewritten(model_type: str) -> dict[str, str]:
    """Return the names of transformers 4 that PEFT takes to mean parameters of transformers 5."""
    if model_type in MIXTRAL_TYPES:
        return MIXTRAL_NAMES
    return QWEN_NAMES if model_type in QWEN_TYPES else {}


def _refuse_half(names: set[str], rewritten: dict[str, str]) -> None:
    """Raise FieldError where of gate and up, one tensor, only one is named."""
    both = {old for old, new in rewritten.items() if new == "gate_up_proj"}
    if names & both and both - names:
        asked, missing = ", ".join(names & both), ", ".join(both - names)
        raise FieldError(
            f"lora_targets has {asked} without {missing}: transformers 5 holds both as one tensor; give both."
        )


def _names(model: Architecture, *, fused_experts: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of a model's modules that may have adapters, and of the layers' bare parameters."""
    modules = {last_name(linear.name) for linear in model.widening}
    bare: set[str] = set()
    for layer, _ in model.layers:
        for branch in layer.branches:
            for linear, kind in linears_of(branch.mixer, fused_experts=fused_experts):
                held_bare = fused_experts and kind in ("experts", "router")
                (bare if held_bare else modules).add(last_name(linear.name))
    return frozenset(modules), frozenset(bare)


def linears_of(mixer: object, *, fused_experts: bool) -> Iterator[tuple[Linear, str]]:
    """Return every projection of a mixer once, experts' of one expert, with its kind."""
    if not isinstance(mixer, MixtureOfExperts):
        yield from ((linear, linear.kind) for linear in getattr(mixer, "projections", ()))
        return
    yield mixer.router, mixer.router.kind
    yield from ((linear, "experts") for linear in mixer.expert_projections(apart=not fused_experts))
    yield from ((linear, "linear") for linear in mixer.latent)
    if mixer.shared is not None:
        yield from ((linear, "linear") for linear in mixer.shared.projections)
    if mixer.shared_gate is not None:
        yield mixer.shared_gate, "linear"
