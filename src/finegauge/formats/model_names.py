"""Models under names that are not the catalogue's: folders that are not here, and quantised copies.

A copy's name says of what model it is one and in what its weights are held. Those that bitsandbytes, GPTQ or
AWQ made can be trained under adapters, those of inference engines (FP8, GGUF, MLX) by no framework that is
read.
"""

import os
import re
from typing import Any

from finegauge.catalogue.datasets import described
from finegauge.catalogue.models import named_like
from finegauge.catalogue.tables import lines_of
from finegauge.documents import parse_json
from finegauge.errors import FieldError, UnknownNameError, shown
from finegauge.formats.sheet import known_model, mapping_in
from finegauge.records import NamedTuple
from finegauge.run.rules import INFERENCE, QUANTIZED_BY_METHOD
from finegauge.run.run import FROM_COMMAND_LINE, FROM_FILE, Run

_METHODS = {
    **{weights: ("gptq_lora", weights) for weights in ("gptq4", "gptq8")},
    **{"nf4": ("qlora", "nf4"), "nf4_dq": ("qlora", "nf4_dq"), "bitsandbytes' int8": ("qlora", "int8")},
}
_ROLE = r"(?i)[-_]([po]?rm|reward|critic)\b.*"  # Llama-3-8b-rm-700k
FROM_NAME = "base that the name states"
SERVED = ("fp8", "nvfp4", "int8", "gptq4", "gptq8")  # by the engines that are read


class Copy(NamedTuple):
    """A quantised copy."""

    base: str  # of the catalogue; "" where it has none of that name
    weights: str  # a format of weights, or in words what no training reads


def copied(named: str) -> Copy | None:
    """Return of what `named` is a quantised copy, by its name; None where it is none."""
    named, folded = named[:200], named[:200].casefold()
    for line in lines_of("copies.jsonl"):  # words of which a name has one, the name, what follows its model's
        words, whole, ending, weights = parse_json(line, "copies.jsonl").values()
        is_said = any(word in folded for word in words.split())
        if is_said and re.fullmatch(whole, named, re.IGNORECASE):
            return Copy(_base(re.sub(ending, "", named, flags=re.IGNORECASE)), weights)
    return None


def _base(plain: str) -> str:
    last = plain.rpartition("/")[2]
    for guess in (plain, last, f"{last}-hf", last.partition("_")[2]):  # mistralai_Mistral-7B-v0.3
        if (known := known_model(guess)) is not None:
            return known.name
    return named_like(last) or told(last)


def told(named: str) -> str:
    """Return the model of which a name says that it was tuned from it; "" where it says none."""
    from finegauge.catalogue import naming  # its patterns take longer to compile than a question to answer

    return naming.base_of(named) or naming.base_of(re.sub(_ROLE, "", named[:200])) or ""


def base_of(error: UnknownNameError) -> str:
    """Return the model whose shapes an unknown one has by its name; "" where its name does not tell."""
    return told(error.name) if error.kind == "model" else ""


def read_as(run: Run, named: str) -> Run:
    """Return a run of the base of a fine-tune, with the warning that the name alone tells it."""
    warning = (
        f"{shown(named)} is not in the catalogue: read as the architecture of {run.model}, which its name "
        "states; name its config.json for its own."
    )
    origins = {**run.origins, "model": FROM_NAME}
    return Run.from_fields(run.fields(), origins, (warning, *run.warnings))


def _stored(path: str) -> Copy | None:
    """Return in what a model that is here holds its weights, by its config; None where in no such format."""
    known = known_model(path)
    told = mapping_in(known.config if known else None, "quantization_config")
    kind = str(told.get("quant_method") or "bitsandbytes")
    if told and kind == "bitsandbytes":
        four = "nf4_dq" if told.get("bnb_4bit_use_double_quant") else "nf4"
        return Copy("", "bitsandbytes' int8" if told.get("load_in_8bit") else four)
    return Copy("", f"gptq{told.get('bits', 4)}") if kind in ("gptq", "awq") else None


def take_samples(fields: dict[str, Any], warnings: list[str]) -> None:
    """Take a data set of which only the number of samples is known as so many sequences of seq_len."""
    found = described(fields["dataset"]) if isinstance(fields.get("dataset"), str) else None
    if found is not None and not found.lengths:
        warnings.append(f"Of {found.name} only the number of samples is known: each counts as seq_len long.")
        fields |= {"dataset": None, "num_samples": fields.get("num_samples") or found.num_samples}
        if not fields.get("packing"):
            fields.setdefault("padding", "longest")


def take_copy(fields: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> None:
    """Read from the model's name that it is a quantised copy: what trains on it, or serves it.

    Raises: FieldError for one that no training reads, and for one of whose weights all should train.
    """
    named = fields.get("model")
    copy = (_stored if os.path.exists(named) else copied)(named) if isinstance(named, str) else None
    if copy is None:
        return
    named = str(named)
    instead = f"; name {copy.base}, of which it is a copy" if copy.base else "; name the model that it copies"
    method, stated = str(fields.get("method", "lora")), origins.get("method") == FROM_COMMAND_LINE
    if str(fields.get("phase")) in INFERENCE:
        if copy.weights in SERVED and origins.get("weights_dtype", FROM_FILE) != FROM_COMMAND_LINE:
            fields["weights_dtype"] = copy.weights
    elif copy.weights not in _METHODS:
        why = "training on which is not predicted" if copy.weights == "nvfp4" else "which no training reads"
        raise FieldError(f"{shown(named)} holds weights in {copy.weights}, {why}{instead}.")
    elif method in ("full", "freeze") and not stated:
        raise FieldError(
            f"{shown(named)} holds quantised weights, which train under adapters alone: use LoRA{instead}."
        )
    elif method == "lora" and not stated:
        fields["method"], dtype = _METHODS[copy.weights]
        origins["weights_dtype"] = origins.get("method", FROM_FILE)
        fields["weights_dtype"] = dtype
    elif method not in QUANTIZED_BY_METHOD:
        return
    if warning := said(copy, named):
        fields["model"] = copy.base
        warnings.append(warning)


def said(copy: Copy | None, named: str) -> str:
    """Return the warning of a copy that the catalogue lacks and whose base it has; "" of any other."""
    if copy is None or not copy.base or known_model(named) is not None:
        return ""
    return f"{shown(named)} is not here: taken as {copy.base} in {copy.weights}."


def here(named: str) -> tuple[str, str]:
    """Return a model's folder that is not here as the catalogue's of that name, and a warning of it."""
    path = named.rstrip("/")
    if re.match(r"[A-Za-z]:\\", path):  # of Windows
        path = path[2:].replace("\\", "/").rstrip("/")
    of_hub = "models--" in path and re.search(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)(?:/|$)", path)
    if of_hub:  # the Hub's cache
        return f"{of_hub[1]}/{of_hub[2]}", ""
    if not (path.startswith(("/", "./", "../", "~")) or path.count("/") > 1) or os.path.exists(
        os.path.expanduser(path)
    ):
        return path or named, ""
    path = re.sub(r"/[^/]+\.(bin|safetensors|pth?|gguf)$", "", path)  # one of its files
    last = path.rpartition("/")[2].replace("___", ".")  # as ModelScope writes a dot
    known = known_model(re.sub(r"-(?:HF|hf)$", "", last))
    found = known.name if known else named_like(last)
    if not found:
        return named, ""
    return found, f"The model's folder {shown(named)} is not here: it is taken as {found}."


def narrow(named: str) -> dict[str, Any]:
    """Return the fp8 recipe that a name tells: bf16_with_fp8_current_scaling_mixed, mxfp8."""
    told = re.search(r"current|delayed|subchannel|mxfp8|nvfp4", named)
    scaled = told[0].replace("subchannel", "blockwise") if told else "delayed"
    return {"fp8": "hybrid", "fp8_recipe": scaled} if re.search(r"fp8|fp4", named) else {}
