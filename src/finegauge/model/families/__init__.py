"""The blocks of each model family: one row of a table per `model_type`.

`architecture(config)` is the way in. `dense`, `gpt`, `experts` and `latent` hold the rows of decoders of
known blocks, `recurrent` those that carry a state, `vision` those behind a tower; `decoder` makes an
`Architecture` of a row.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from finegauge.errors import FieldError, UnsupportedError, shown
from finegauge.model.blocks import Architecture, Branch, Layer, MixtureOfExperts
from finegauge.model.families.decoder import CAUSAL, Family, decoder, headed, numerics_of, own_task
from finegauge.model.families.parts import Figures

# What the models need that neither a block here nor a transformers class (5.23) has, or what the class does
# that only data can tell.
NO_CLASS = "transformers has no class of it that could be traced"
BY_VALUES = "its class reads the values of tensors"
NOT_TRACED = {
    "kimi_k3": ("the residual attention and latent experts of Kimi K3", NO_CLASS),
    **{f"rwkv{n}": (f"RWKV-{n}'s time mixing", NO_CLASS) for n in (5, 6, 7)},
    "blt": ("the patcher that cuts bytes where their entropy says (BLT)", BY_VALUES),
    "jetmoe": ("attention whose queries are experts (JetMoE)", BY_VALUES),
    "xlm": ("a language for every word (XLM)", BY_VALUES),
    "xlnet": ("attention in two streams (XLNet)", "its class multiplies in two widths"),
    "xmod": ("adapters of one language each (X-MOD)", BY_VALUES),
}
CAUSAL_ALONE = (
    *("bert-generation", "data2vec-text", "ernie", "megatron-bert", "rembert", "roberta-prelayernorm"),
    *("roc_bert", "roformer", "xlm-roberta-xl"),
)
DECODER_ALONE = (
    *("bigbird_pegasus", "blenderbot", "blenderbot-small", "moshi", "musicgen", "musicgen_melody"),
    *("mvp", "plbart", "prophetnet", "trocr"),
)


def architecture(
    config: Mapping[str, Any],
    num_experts_per_tok: int | None = None,
    task: str | None = None,
    num_labels: int = 2,
) -> Architecture:
    """Return what the model of a parsed `config.json` is made of.

    `num_experts_per_tok` replaces the config's: all experts for dense fine-tuning of a mixture of experts.
    `task` says which head it has, of so many labels where it classifies; None: the usual one of its type.

    Raises: FieldError for a figure that no model can have, UnsupportedError for a `model_type` that is not
    supported.
    """
    model_type = _model_type(config)
    row = family(model_type)
    if row is None:
        if task not in (None, CAUSAL):
            raise UnsupportedError(
                f"task={task} is not predicted for model_type '{model_type}', which is counted as the causal "
                f"class of transformers alone; remove it."
            )
        return _traced(config, num_experts_per_tok)
    if config.get("per_layer_config"):
        config = _folded(config, row, model_type)
    figures = Figures(config, row.get("defaults", {}), row.get("aliases"), model_type)
    if "behind" in row:
        from finegauge.model.families.vision import behind_tower

        described = behind_tower(config, row, model_type, architecture)
    else:
        described = row["build"](figures) if "build" in row else decoder(figures, row)
    if "numerics" in row:
        described = described._replace(numerics=numerics_of(config, **row["numerics"]))
    if num_experts_per_tok is not None:
        described = _with_top_k(described, num_experts_per_tok)
    return headed(described, figures, row, task, num_labels)


def _folded(config: Mapping[str, Any], row: Family, model_type: str) -> Mapping[str, Any]:
    """Return a config without `per_layer_config`, in which transformers 5.23 writes figures of some layers.

    Raises: UnsupportedError where it tells layers apart by more than the kind that the row names.
    """
    listed, kinds = config["per_layer_config"], config.get("layer_types")
    kind, names = row.get("per_layer", ("", {}))
    entries = list(listed.items()) if isinstance(listed, Mapping) else []
    same = all(isinstance(own, Mapping) and own == entries[0][1] for _, own in entries)
    told = isinstance(kinds, list) and {i for i, each in enumerate(kinds) if each == kind}
    layers = {int(i) for i, _ in entries if str(i).isdecimal()}
    if not entries or not same or layers != told or not set(entries[0][1]) <= set(names):
        raise UnsupportedError(
            f"model_type '{model_type}': layers that differ by per_layer_config are not supported yet."
        )
    rest = {key: value for key, value in config.items() if key != "per_layer_config"}
    return {**rest, **{names[key]: value for key, value in entries[0][1].items()}}


def family(model_type: str) -> Family | None:
    """Return the row of a `model_type` with what it takes over from others, None if there is none."""
    row = next((table[model_type] for table in _tables() if model_type in table), None)
    base = family(row["like"]) if row and "like" in row else None
    if row is None or base is None:
        return row
    return {**base, **row, "defaults": {**base.get("defaults", {}), **row.get("defaults", {})}}


def _tables() -> Iterator[Mapping[str, Family]]:
    """Yield the tables, the usual ones first; each is read only where those before lack a family."""
    from finegauge.model.families.dense import DENSE

    yield DENSE
    from finegauge.model.families.experts import EXPERTS

    yield EXPERTS
    from finegauge.model.families.encoders import ENCODERS

    yield ENCODERS
    from finegauge.model.families.gpt import GPT
    from finegauge.model.families.hybrids import HYBRIDS
    from finegauge.model.families.latent import LATENT
    from finegauge.model.families.newest import NEWEST
    from finegauge.model.families.recurrent import RECURRENT
    from finegauge.model.families.vision import VISION

    yield from (GPT, LATENT, RECURRENT, HYBRIDS, NEWEST, VISION)


def supported_model_types() -> list[str]:
    """Return every `model_type` that `architecture` accepts."""
    return sorted(name for table in _tables() for name in table)


def _model_type(config: Mapping[str, Any]) -> str:
    if not isinstance(config, Mapping):
        raise FieldError(f"The model's config is {shown(config)}, not a mapping of figures.")
    model_type = config.get("model_type")
    if model_type is None and "mamba_moe_layers" in config:
        return "blackmamba"  # its files carry no model_type
    if model_type is None and config.get("architectures") == ["MiniCPM3ForCausalLM"]:
        return "minicpm3"  # nor does this one
    if model_type is None:
        raise FieldError(
            "The model's config has no 'model_type'; take the config.json of the model's repository."
        )
    if not isinstance(model_type, str):
        raise FieldError(f"model_type={shown(model_type)} is not a text such as 'llama'.")
    return model_type


def usual_task(config: Mapping[str, Any], stated: str | None) -> str:
    """Return the task of a model: what is `stated`, or as its class or its type has it."""
    row = family(str(config.get("model_type", "")))
    return stated or own_task(config.get("architectures"), row.get("tasks") if row else None)


def is_described(config: Mapping[str, Any]) -> bool:
    """Return whether a row describes the `model_type` of a `config.json`."""
    return family(_model_type(config)) is not None


def untraced(config: Mapping[str, Any]) -> str:
    """Return why the trace of a model_type that no row describes is missing; "" where one holds.

    Raises: UnsupportedError where there is nothing to trace.
    """
    from finegauge.errors import did_you_mean
    from finegauge.model.traced import read_trace

    model_type = _model_type(config)
    if model_type in NOT_TRACED:
        missing, why = NOT_TRACED[model_type]
        raise UnsupportedError(f"model_type '{model_type}': {missing} is not supported, and {why}.")
    found, problem = read_trace(config)
    near = did_you_mean(model_type, supported_model_types())
    unknown = f"model_type {shown(model_type)} is not supported yet.{near}"
    return "" if found is not None else problem or unknown


def _traced(config: Mapping[str, Any], num_experts_per_tok: int | None) -> Architecture:
    """Return the architecture that `finegauge trace` cached.

    Raises: UnsupportedError where it cached none that holds, naming the command.
    """
    from finegauge.model.traced import read_trace

    why = untraced(config)
    if why:
        known = len(supported_model_types())
        raise UnsupportedError(
            f"{why} Run 'finegauge trace MODEL_DIR' once, the folder of this config.json, to take the "
            f"operators from its transformers class; described are {known} types, such as llama."
        )
    found, _ = read_trace(config)
    assert found is not None
    model_type = _model_type(config)
    if num_experts_per_tok is not None:
        raise UnsupportedError(
            f"num_experts_per_tok={num_experts_per_tok}: a traced model_type ({model_type}) keeps those "
            "of its config.json; change them there and trace it again."
        )
    return found._replace(notes=(*found.notes, *beyond_causal_text(model_type)))


def beyond_causal_text(model_type: str) -> tuple[str, ...]:
    """Return what a count of transformers' causal class of a type leaves out, in a sentence; else nothing."""
    if model_type in CAUSAL_ALONE:
        return (
            f"{model_type} is counted as the causal class that transformers has of it: heads that classify, "
            "embed or rank are not modelled, nor are tokens masked at random",
        )
    if model_type in DECODER_ALONE:
        return (
            f"of {model_type} the decoder alone is counted, as transformers' causal class has it: its "
            "encoder, and attention to that, are not modelled",
        )
    return ()


def _with_top_k(described: Architecture, top_k: int) -> Architecture:
    """Return the architecture with `top_k` experts per token in every routed feed-forward."""
    found = False

    def rerouted(branch: Branch) -> Branch:
        nonlocal found
        moe = branch.mixer
        if not isinstance(moe, MixtureOfExperts):
            return branch
        if not isinstance(top_k, int) or not 1 <= top_k <= moe.num_experts:
            raise FieldError(f"num_experts_per_tok={shown(top_k)}, but there are {moe.num_experts} experts.")
        found = True
        return branch._replace(mixer=moe._replace(top_k=top_k))

    layers: list[tuple[Layer, int]] = [
        (layer._replace(branches=tuple(map(rerouted, layer.branches))), count)
        for layer, count in described.layers
    ]
    if not found:
        raise FieldError(
            f"num_experts_per_tok={top_k}, but '{described.model_type}' has no routed experts; leave it out."
        )
    return described._replace(layers=tuple(layers))
