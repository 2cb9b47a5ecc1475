"""Python that starts a training, as a script or a notebook's cells: read as text and never run.

What `python_values` cannot work out is computed by the script: it is reported, and not read.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from finegauge.errors import FieldError, FileFormatError, shown
from finegauge.formats import MAX_SCRIPT
from finegauge.formats.autotrain import of_options
from finegauge.formats.key_table import RUN_FILE, recognise
from finegauge.formats.launchers import OF_FILES, known_card
from finegauge.formats.loops import imports, instead, name_linears, own_loop, without_opaque
from finegauge.formats.model_keys import PEFT_TYPES, class_of, peft_keys
from finegauge.formats.python_values import Files, Values
from finegauge.formats.recipes import READER, hydra_settings, recipe_in
from finegauge.formats.script_changes import OPAQUE, callee, last_name
from finegauge.formats.script_text import drop_dead_branches, drop_later, unfold_partials, with_neighbours
from finegauge.formats.sheet import BLOCK, samples_of
from finegauge.formats.trainer_keys import in_all
from finegauge.records import NamedTuple
from finegauge.run.rules import num_held_out


class Script(NamedTuple):
    """What a script says."""

    keys: dict[str, Any]
    reader: str  # the module of formats that reads them
    warnings: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()  # options of its own parser, which only it reads


_TRL_WORDS = ("SFT", "DPO", "GRPO", "Reward", "KTO", "ORPO", "CPO", "PPO", "RLOO")
_TRL_ARGUMENTS = {f"{word}Config": word.lower() for word in _TRL_WORDS}
_TRL_TRAINERS = {f"{word}Trainer": word.lower() for word in _TRL_WORDS}
_HF_ARGUMENTS = {"TrainingArguments", "Seq2SeqTrainingArguments", "UnslothTrainingArguments"}
_ARGUMENTS = {*_TRL_ARGUMENTS} | _HF_ARGUMENTS
_TRAINERS = {*_TRL_TRAINERS, "Trainer", "Seq2SeqTrainer", "UnslothTrainer"}
_UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastSentenceTransformer")
# Classes whose arguments are a framework's own keys: the module that reads them.
_OTHERS = {"DictDefault": "axolotl", "LLMTrainingParams": "autotrain"} | dict.fromkeys(
    ("TrainArguments", "SftArguments", "RLHFArguments"), "ms_swift"
)
_OF_LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "use_dora": "use_dora",
    **{name: name for name in ("rank_pattern", "alpha_pattern", "layers_to_transform", "exclude_modules")},
    "target_parameters": "target_parameters",
}
# Classes of PEFT's other configurations, without their ending.
_OF_PEFT = {kind.replace("_", ""): kind for kind in PEFT_TYPES if kind != "LORA"}
_OF_PEFT["PROMPTENCODER"] = "P_TUNING"
_OF_BITSANDBYTES = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
}
_OF_MODEL = (
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "load_in_4bit",
    "load_in_8bit",
    "experts_implementation",
    "full_finetuning",
)
_FINETUNES = tuple(
    f"finetune_{part}" for part in ("vision_layers", "language_layers", "attention_modules", "mlp_modules")
)
_OF_UNSLOTH = ("max_seq_length", "fast_inference", "gpu_memory_utilization")
_OF_TRAINER = ("max_seq_length", "packing", "max_length", "max_prompt_length", "beta")
_TO_UNSLOTH = {
    "model_name_or_path": "model",
    "dataset_name": "data.dataset",
    "per_device_train_batch_size": "training.batch_size",
    "num_train_epochs": "training.num_epochs",
    "use_gradient_checkpointing": "training.gradient_checkpointing",
    "lora_target_modules": "lora.target_modules",
    "lora_modules_to_save": "lora.modules_to_save",
    **{
        name: f"training.{name}"
        for name in (
            *("gradient_accumulation_steps", "max_steps", "optim", "packing", "padding_free", "fp16"),
            *("max_seq_length", "load_in_4bit", "load_in_8bit", "trainer"),
            *("num_generations", "max_completion_length", "max_prompt_length", "use_vllm", "beta"),
            *("vllm_gpu_memory_utilization", "vllm_mode", "num_iterations", "steps_per_generation"),
        )
    },
    "fast_inference": "training.use_vllm",
    "gpu_memory_utilization": "training.vllm_gpu_memory_utilization",
    **{name: f"lora.{name}" for name in ("lora_r", "lora_alpha", "lora_dropout", *_FINETUNES)},
}
# What a notebook's functions do unasked, where that differs from `unsloth train`.
_NOTEBOOK = {
    "training.batch_size": 8,
    "training.gradient_accumulation_steps": 1,
    "training.optim": "adamw_torch_fused",
    "lora.lora_r": 16,
}
_TRAINERS_OF = ("trl", "transformers", "unsloth", "unsloth_zoo", "modelscope", "swift", "optimum")
_OWN_LOOP = (
    "its loop is its own: batch, steps and precision are those of its loader, optimizer and loss; what else "
    "it does is not read"
)
_COMPUTED = "is computed by the script and is not read; state it on the command line."
MODEL_COMPUTED = "the model is an argument without a default, or computed, and is not read"
_CUT_BY_CONFIG = ("dpo", "reward", "orpo", "cpo", "simpo", "kto")
_MAX_NODES = 50_000


def load_python(
    text: str,
    name: str,
    options: Mapping[str, Any] = {},
    environment: Mapping[str, str] = {},
    files: Files = lambda _: None,
) -> Script:
    """Return what a script's training calls say, under the keys of the framework that it calls.

    Args:
        text: Of the script.
        name: For messages.
        options: The command line that it is started with, {name: value}.
        environment: What the shell script that starts it had set.
        files: Returns the text of a file beside the script.

    Raises: FileFormatError for text that is no Python, or that starts no training.
    """
    tree = _parsed(text, name)
    with_neighbours(tree, files)
    unfold_partials(list(ast.walk(tree)))
    name_linears(tree)
    composed, missing = hydra_settings(list(ast.walk(tree)), options, files)
    script = _Reader(tree, {} if composed else options, environment, files, composed)
    script.values.missing += [missing] if missing else []
    nodes, wanted = list(ast.walk(tree)), str(options.get("config", ""))
    recipe, computed, remark = recipe_in(nodes, script.values, script.modules, wanted)
    untold = computed if recipe else {key for key in script.opaque if not OF_FILES.search(key)}
    warnings = tuple(f"{name}: {key} {_COMPUTED}" for key in sorted(untold)[:20])
    if recipe:
        return Script(recipe, recipe.pop(READER), (*warnings, *remark))
    if script.theirs:
        of_class = script.theirs == "autotrain"  # whose class names what `autotrain llm` takes
        keys = of_options({"task": "llm", **script.keys}) if of_class else script.keys
        return Script(keys, script.theirs, warnings)
    if not script.calls & (_ARGUMENTS | _TRAINERS):
        loop = own_loop(list(ast.walk(tree)), script.values, script.modules)
        vllm = script.modules.get("LLM", "").startswith("vllm")
        if not loop or "model_name_or_path" not in script.keys or vllm:
            return _written(script, name, warnings)
        script.keys = {**loop, **script.keys, **({BLOCK: loop[BLOCK]} if BLOCK in loop else {})}
        untold = {key for key, value in loop.items() if value is OPAQUE}
        script.opaque |= untold
        warnings += (f"{name}: {_OWN_LOOP}.", *(f"{name}: {key} {_COMPUTED}" for key in sorted(untold)))
    from finegauge.formats.trl import OF_SCRIPT, TRAINER

    keys = {key: value for key, value in script.keys.items() if key not in script.opaque}
    known = {*TRAINER.keys, "dataset", *OF_SCRIPT}  # others are fields of the script's own classes
    keys = {key: value for key, value in keys.items() if key in known or key not in script.values.parsed}
    warnings += tuple(f"{name}: {said}." for said in _unread(script, keys))
    if script.is_unsloth:
        own = frozenset(options if composed else script.values.declared)
        return Script(unsloth_keys(keys, adapts=script.adapts), "unsloth", warnings, own)
    if script.is_old or (script.calls & _HF_ARGUMENTS and not script.calls & {*_TRL_ARGUMENTS}):
        keys = {"bf16": False, "gradient_checkpointing": False, **keys}  # TRL takes all that they hold
    if script.values.asks_for_bf16 and keys.get("bf16") is True:
        keys["bf16"] = "auto"
    if script.adapts or script.loads_adapters:
        keys = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "use_peft": True, **keys}
    if script.loads_itself:
        keys.setdefault("dtype", keys.pop("torch_dtype", "auto"))
    reader = "trl" if script.calls & {*_TRL_ARGUMENTS, *_TRL_TRAINERS} else "trl:TRAINER"
    own = frozenset({*options} if composed else script.values.declared - {*TRAINER.keys})
    return Script(keys, reader, warnings, own)


def _unread(script: "_Reader", keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a script leaves to others; raise FieldError where it learns from a teacher."""
    if script.has_teacher:
        raise FieldError("teacher_model distils a teacher, which is not supported: ask for a student.")
    if script.model_computed and "model_name_or_path" not in keys:
        absent = [f"in {shown(one)}, which is not here" for one in script.values.missing]
        yield f"the model is {absent[0]}, and is not read" if absent else MODEL_COMPUTED
    if script.builds and "model_name_or_path" not in keys:
        yield "the model is built by the script, of a configuration of its own, and is not read"
    if script.loads_adapters and "lora_r" not in keys:
        yield "it goes on with adapters that it loads, whose rank is taken as 8: lora_rank=… says"
    if script.has_mxfp4:
        yield (
            "transformers' trainer refuses weights in MXFP4, which have no gradients: they are read as bf16, "
            "as Mxfp4Config(dequantize=True) loads them"
        )
    counted = "eval_samples" in script.keys.get(BLOCK, {}) or keys.get("predict_with_generate") is True
    if script.keeps_logits and not counted and keys.get("prediction_loss_only") is not True:
        yield "compute_metrics keeps the logits of all samples: eval_samples=N eval_logits=true counts them"
    if script.starts_several:
        yield "it starts several trainings: the first is read"
    made = [name for name in sorted(_ARGUMENTS) if script.made[name] > 1]
    if made:
        yield f"{made[0]} is called {script.made[made[0]]} times: what the first says stands"
    if script.has_arguments and not script.calls & _ARGUMENTS:
        yield "the training arguments are made elsewhere: they count as the defaults"


def _written(script: "_Reader", name: str, warnings: tuple[str, ...]) -> Script:
    """Return a framework's file that a script holds as a mapping."""
    for mapping in script.values.mappings():
        if (reader := recognise(mapping)) not in ("", RUN_FILE):
            data = {"dataset": script.trained_on} if reader == "ludwig" and script.trained_on else {}
            return Script({**data, **mapping}, reader, warnings)
    raise FileFormatError(
        f"{name} starts no training that is known: {instead(script.modules, script.calls)}."
    )


def _parsed(text: str, name: str) -> ast.Module:
    """Return the syntax tree; raise FileFormatError for text that is no Python, or too much of it."""
    import warnings

    if len(text) > MAX_SCRIPT:
        raise FileFormatError(f"{name} is too long a script; at most {MAX_SCRIPT:,} characters are read.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        raise FileFormatError(f"{name} is not valid Python{line}.") from None
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise FileFormatError(f"{name} is too long a script; at most {_MAX_NODES:,} parts are read.")
    return tree


def unsloth_keys(keys: Mapping[str, Any], *, adapts: bool) -> dict[str, Any]:
    """Return a notebook's keys in the sections of Unsloth's YAML."""
    found: dict[str, dict[str, Any]] = {"data": {}, "training": {}, "lora": {}}
    whole: dict[str, Any] = dict(found)
    flat = {**_NOTEBOOK, **{_TO_UNSLOTH[key]: value for key, value in keys.items() if key in _TO_UNSLOTH}}
    if "max_length" in keys and ("max_seq_length" not in keys or keys.get("trainer") in _CUT_BY_CONFIG):
        flat["training.max_seq_length"] = keys["max_length"]
    if re.fullmatch(r"(torch\.)?(float16|half|fp16)", str(keys.get("dtype"))):
        flat.setdefault("training.fp16", True)
    for key, value in flat.items():
        section, dot, rest = key.partition(".")
        (found[section] if dot else whole)[rest or section] = value
    if "finegauge" in keys:
        whole["finegauge"] = keys["finegauge"]
    found["training"]["training_type"] = "lora" if adapts and not keys.get("full_finetuning") else "full"
    return whole


class _Reader:
    """The training calls of one script and what their arguments come to."""

    def __init__(self, tree: ast.Module, *given: Any) -> None:
        """Read `tree`, names first; `given` is what `load_python` is, from the options on."""
        nodes = list(ast.walk(tree))
        self.values = Values(nodes, *given)
        dropped = drop_dead_branches(nodes, self.values)
        self.starts_several = drop_later(list(ast.walk(tree)))
        nodes = list(ast.walk(tree))
        if dropped or self.starts_several:
            self.values = Values(nodes, *given)
        self.modules = imports(nodes)
        self.keys: dict[str, Any] = dict(self.values.parsed)
        self.opaque: set[str] = set()  # keys whose value is computed
        self.calls = {
            last_name(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases
        }
        self.calls |= self.values.parsed_classes
        self.made = Counter[str]()  # how often each is called
        self.theirs = ""  # the module that reads the keys of a framework's own class
        self.is_unsloth = self.is_old = False  # old: a trainer takes what TRL 0.16 took away
        self.adapts = False
        self.loads_itself = False
        self._trainings: set[str] = set()  # names of training arguments
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        self._makers = {
            one.name
            for one in functions
            if isinstance(last := one.body[-1], ast.Return) and isinstance(last.value, ast.Call)
            if last_name(last.value.func) in _ARGUMENTS
        }
        self.model_computed = False
        self.loads_adapters = False  # of another training, to go on with
        self.builds, self._built = False, None  # a model without its weights, of another's configuration
        self.has_arguments = False  # a trainer, wherever they are
        self.keeps_logits = self.has_mxfp4 = self.has_teacher = False
        self._evaluated: ast.expr | None = None  # the data set of a trainer's evaluations
        self._cuts = list[int]()  # where a tokenizer is told to cut
        self.trained_on = ""
        self._told = dict[str, Any]()  # fields that calls tell outright, as the GPU that a cloud is asked for
        self._taken = list[int]()  # how many samples of a data set are taken
        unsure = (n for n in nodes if isinstance(n, ast.If) and "debug" in ast.unparse(n.test))
        self._unsure = {id(part) for one in unsure for part in ast.walk(one)}  # run in trials alone
        self._read_all(nodes)
        if self._cuts and not {"max_length", "max_seq_length", "model_max_length"} & {*self.keys}:
            self.keys["max_length"] = max(self._cuts)
        if not {"load_in_4bit", "load_in_8bit"} & {*self.keys}:
            self._told.pop("upcast_unquantized", None)
        taken = {"num_samples": max(self._taken)} if self._taken else {}
        if any(isinstance(n, ast.FunctionDef) and n.name in ("group_texts", "group_text") for n in nodes):
            self._note_blocks()
        for node in nodes:
            if isinstance(node, ast.Assign):
                self._amend(node.targets[0], node.value)
            elif isinstance(node, ast.Call) and callee(node.func) == ("", "setattr") and len(node.args) == 3:
                of, named, value = node.args
                self._amend(ast.Attribute(of, str(self.values.of(named)), ast.Store()), value)
        if told := {**self._told, **taken, **self._evaluation()}:
            self.keys["finegauge"] = told
        if self.builds and isinstance(self._built, str):
            self.keys.setdefault("model_name_or_path", self._built)

    def _evaluation(self) -> dict[str, Any]:
        """Return the samples of an evaluation, and whether it keeps their logits for its metrics."""
        kind = self.keys.get("eval_strategy", self.keys.get("evaluation_strategy", "no"))
        if self._evaluated is None or (kind == "no" and "evaluate" not in self.calls):
            return {}
        found, ways, seen = list[int](), [self._evaluated], set[str]()
        split, total = self._told.get("validation_fraction"), in_all([str(self.keys.get("dataset_name"))])
        for way in ways:
            for node in ast.walk(way):
                if isinstance(node, ast.Call):
                    name, told = callee(node.func)[1], self.values.named(node)
                    whole = max(self._taken, default=total or 0)
                    if name == "train_test_split":
                        size = told.get("test_size")
                        found.append(size if isinstance(size, int) else num_held_out(whole, split or 0.0))
                    elif taken := self._samples(node, name, told):
                        found.append(taken)
                elif isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    ways += [one] if isinstance(one := self.values.assigned(node.id), ast.expr) else []
        if not (samples := min(found, default=0)):
            return {}
        words = self.keys.get("predict_with_generate") or self.keys.get("prediction_loss_only")
        return {"eval_samples": samples} | ({"eval_logits": True} if self.keeps_logits and not words else {})

    def _read_all(self, nodes: list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.Call):
                self.has_teacher |= any(one.arg == "teacher_model" for one in node.keywords)
                self._read(node, *callee(node.func))
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
                self._note_slice(node.value, node.slice)

    def _read(self, call: ast.Call, owner: str, name: str) -> None:
        """Read one call, if it is one of those that make up a training."""
        module = "." if not owner and name in self.values.classes else self.modules.get(owner or name, "trl")
        if name in _TRAINERS and module.partition(".")[0] not in _TRAINERS_OF:
            return  # a class of the script's own project, called as one that is known
        if isinstance(alias := self.values.assigned(owner), ast.Name | ast.Attribute):
            owner = last_name(alias)  # model_class = AutoModelForCausalLM
        self.calls.add(name)
        self.made[name] += 1
        if name in _OTHERS and (call.keywords or call.args):
            self.theirs = _OTHERS[name]
            self._take(call, None)
            for argument in call.args[:1]:
                self._spread(argument, None)
        elif name in _ARGUMENTS:
            before = sum(self.made[one] for one in _ARGUMENTS) > 1
            if not before or any(one.arg is None for one in call.keywords):
                self._note("trainer", _TRL_ARGUMENTS.get(name))
                self._take(call, None)
        elif name in _TRAINERS:
            self._read_trainer(call, name)
        elif name == "from_pretrained" and (
            owner in _UNSLOTH
            or owner.startswith("AutoModel")
            or re.search("(ForCausalLM|LMHeadModel|ForConditionalGeneration)$", owner)
            or class_of(owner)
        ):
            if named := class_of(owner):
                self._note("auto_class", named)
                self._take(call, {"num_labels": None})
            self.is_unsloth |= owner in _UNSLOTH
            self.loads_itself |= owner not in _UNSLOTH
            self._take_model(call, "model_name" if owner in _UNSLOTH else "pretrained_model_name_or_path")
            self._take(call, dict.fromkeys((*_OF_MODEL, *_OF_UNSLOTH)))
        else:
            self._read_beside(call, owner, name)

    def _read_trainer(self, call: ast.Call, name: str) -> None:
        if name in _TRL_TRAINERS:
            others = any(self.made[one] for one in _TRL_TRAINERS if one != name)
            self.starts_several |= others
            self.keys |= {} if others else {"trainer": _TRL_TRAINERS[name]}
        self._take(call, dict.fromkeys(_OF_TRAINER))
        self._take_model(call, "model")
        given = {str(one.arg): one.value for one in call.keywords}
        self.has_arguments |= bool({"args", "None"} & {*given})
        other = given.get("ref_model", call.args[1] if len(call.args) > 1 else None)
        made = self.values.assigned(last_name(other)) if name == "DPOTrainer" else None
        if isinstance(made, ast.Call) and callee(made.func)[1] == "from_pretrained":
            self._told["reference_model"] = "copy"  # beside adapters too
        self.is_old |= name in _TRL_TRAINERS and "tokenizer" in given
        self.keeps_logits |= "compute_metrics" in given and "preprocess_logits_for_metrics" not in given
        self._evaluated = given.get("eval_dataset", self._evaluated)

    def _note_blocks(self) -> None:
        """Note that texts are joined and cut into blocks, as run_clm.py does."""
        size = self.values.of(ast.Name("block_size", ast.Load()))
        if isinstance(size, int):
            self.keys["max_length"] = size
            self.keys |= {"packing": True, "packing_strategy": "wrapped"}

    def _note_slice(self, of: ast.expr, part: ast.Slice) -> None:
        """Note where a script cuts by itself: input_ids[:512]."""
        named = self.values.of(of.slice) if isinstance(of, ast.Subscript) else last_name(of)
        cut = self.values.of(part.upper) if part.upper and not part.lower else None
        if named == "input_ids" and isinstance(cut, int) and 16 <= cut < 10**7:
            self._cuts.append(cut)

    def _note_cut(self, call: ast.Call, *, tokenizes: bool) -> None:
        """Note where a tokenizer cuts, and whether it pads to there."""
        told = self.values.named(call)
        cut = told.get("max_length" if tokenizes else "model_max_length")
        if "text_target" in told:  # of an encoder and its decoder
            self._told |= {"target_seq_len": cut} if isinstance(cut, int) and 0 < cut < 10**6 else {}
            return
        if tokenizes and told.get("truncation") and told.get("padding") == "max_length":
            self.keys.setdefault("pad_to_max_length", True)
        if isinstance(cut, int) and 0 < cut < 10**7 and (not tokenizes or told.get("truncation")):
            self._cuts.append(cut)

    def _read_beside(self, call: ast.Call, owner: str, name: str) -> None:
        """Read a call beside the model and the trainer: adapters, quantisation, data."""
        if name == "LoraConfig":
            self.adapts = True
            self._take(call, _OF_LORA)
        elif (kind := name.removesuffix("Config").upper()) in _OF_PEFT and name != kind:
            self.adapts = True
            literal = {key: value for key, value in self.values.named(call).items() if value is not OPAQUE}
            self.keys.setdefault("peft", peft_keys(_OF_PEFT[kind], literal))
        elif name == "BitsAndBytesConfig":
            self._take(call, _OF_BITSANDBYTES)
        elif name == "Mxfp4Config":
            self.has_mxfp4 |= self.values.named(call).get("dequantize") is not True
        elif name == "get_peft_model" and owner in _UNSLOTH:
            self.adapts = True
            self._take(call, {**_OF_LORA, "use_gradient_checkpointing": None, **dict.fromkeys(_FINETUNES)})
        elif re.fullmatch(r"(\w+_)?(tokenizer|tok)", name) or name in ("encode_plus", "batch_encode_plus"):
            self._note_cut(call, tokenizes=True)
        elif name == "from_pretrained" and "okenizer" in owner:
            self._note_cut(call, tokenizes=False)
        elif name in ("function", "cls") and owner in ("app", "stub"):  # Modal's
            self._told |= known_card(str(self.values.named(call).get("gpu", "")).partition(":")[0])
        elif name in ("ScalingConfig", "notebook_launcher"):  # Ray's and accelerate's: workers on a GPU each
            told = self.values.named(call)
            workers = told.get("num_workers") if told.get("use_gpu") else told.get("num_processes")
            self._told |= {"num_gpus": workers} if isinstance(workers, int) else {}
            self._told |= known_card(str(told.get("accelerator_type", "")))
        else:
            self._read_model(call, owner, name)
            self._read_data(call, name)

    def _read_model(self, call: ast.Call, owner: str, name: str) -> None:
        """Read a call that builds a model without its weights, or has it checkpoint."""
        if name == "from_pretrained" and owner == "PeftModel":
            self.loads_adapters |= self.values.named(call).get("is_trainable") is True
        elif name == "from_pretrained" and owner == "AutoConfig":
            self._built = self.values.of((call.args or [call])[0])
        elif re.search(r"(ForCausalLM|LMHeadModel)$", name) or (
            name == "from_config" and owner.startswith("AutoModel")
        ):
            self.builds = True
        elif name == "gradient_checkpointing_enable":
            self._note("gradient_checkpointing", True)
        elif (owner, name) == ("torch", "compile"):
            self._note("torch_compile", True)
        elif name in ("prepare_model_for_kbit_training", "prepare_model_for_int8_training"):
            told = [self.values.of(one.value) for one in call.keywords if "checkpointing" in str(one.arg)]
            self._note("gradient_checkpointing", True if not told or told[0] is not False else None)
            self._told["upcast_unquantized"] = True

    def _read_data(self, call: ast.Call, name: str) -> None:
        """Read a call about data: what is loaded, and how many of its samples are taken."""
        told = self.values.named(call)
        first = call.args[0] if call.args else None
        if name == "ConstantLengthDataset":  # TRL's before 0.20, and the copies of it
            self._take(call, {"seq_length": "max_length"})
            self.keys |= {"packing": True, "packing_strategy": "wrapped"}
        if name == "load_dataset" and first is not None:
            named = self.values.of(first)
            if named in ("json", "csv", "parquet", "text"):  # what reads the files that it is given
                named = told.get("data_files")
            named = named if isinstance(named, str) else None
            self._note("dataset_name", named)
        if (taken := self._samples(call, name, told)) and id(call) not in self._unsure:
            self._taken.append(taken)
        elif name == "train_test_split" and isinstance(share := told.get("test_size"), float) and share < 1:
            self._told["validation_fraction"] = share
        elif name == "train" and isinstance(named := told.get("dataset"), str):
            self.trained_on = named  # Ludwig's

    def _samples(self, call: ast.Call, name: str, told: Mapping[str, Any]) -> int | None:
        """Return how many samples of a data set a call takes: load_dataset(…, split="train[:500]")."""
        first = call.args[0] if call.args else None
        if name == "load_dataset" and first is not None:
            named = self.values.of(first)
            return samples_of(str(told.get("split", "")), in_all([named] if isinstance(named, str) else ()))
        if name == "select" and isinstance(first, ast.Call) and callee(first.func)[1] == "range":
            taken = self.values.of((first.args or [first])[-1])
            return taken if isinstance(taken, int) and taken > 0 else None
        return None

    def _amend(self, target: ast.expr, value: ast.expr) -> None:
        """Read an argument that is set after the call: training_args.max_steps = 10."""
        if isinstance(target, ast.Name) and isinstance(value, ast.Call):
            if callee(value.func)[1] in self._makers | _ARGUMENTS | {*_OTHERS, "load_cfg", "LoraConfig"}:
                self._trainings.add(target.id)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call):  # of a parser
            self._trainings |= {name for name in map(last_name, target.elts) if "train" in name}
        elif isinstance(target, ast.Attribute) and last_name(target.value) in self._trainings:
            key = _OF_LORA.get(target.attr, target.attr)
            self.keys.pop(key, None)
            self._note(key, self.values.of(value))

    def _take(self, call: ast.Call, wanted: Mapping[str, str | None] | None) -> None:
        """Note the keyword arguments `wanted` (all, if None), under their new names."""
        for argument in call.keywords:
            if argument.arg is None:
                self._spread(argument.value, wanted)
            elif wanted is None or argument.arg in wanted:
                key = argument.arg if wanted is None else (wanted[argument.arg] or argument.arg)
                self._note(key, self.values.of(argument.value))

    def _spread(self, value: ast.expr, wanted: Mapping[str, str | None] | None) -> None:
        """Note the entries of a literal mapping that a call unpacks."""
        mapping = self.values.of(value)
        if mapping is OPAQUE and isinstance(value, ast.Call):  # of a function that leaves some out
            held = [self.values.of(one) for one in value.args]
            mapping = next((one for one in held if isinstance(one, dict)), OPAQUE)
        if mapping is OPAQUE and wanted is None and last_name(value) != "kwargs":
            self.opaque.add("what ** unpacks")
        for name, entry in mapping.items() if isinstance(mapping, dict) else ():
            if isinstance(name, str) and (wanted is None or name in wanted):
                self._note((wanted[name] or name) if wanted else name, self.values.of(entry))

    def _take_model(self, call: ast.Call, keyword: str) -> None:
        """Note the model that a call names: its first argument, or that keyword."""
        given = [argument.value for argument in call.keywords if argument.arg == keyword]
        value = self.values.of((given or call.args or [call])[0])
        if isinstance(value, str) and value:
            self._note("model_name_or_path", value)
        self.model_computed |= value is OPAQUE

    def _note(self, key: str, value: Any) -> None:
        if isinstance(value, dict):  # of an object that is made by a call
            value = {name: self.values.of(one) for name, one in value.items()}
        if isinstance(value, dict | list) and value is not (known := without_opaque(value)):
            self.opaque.add(key)
            self.keys.setdefault(key, known)
        elif value is OPAQUE:
            self.opaque.add(key)
        elif value is not None and value != "":
            self.keys.setdefault(key, value)
