"""Estimates of others for the same runs: rules of thumb, the seed paper's law, tools from PyPI.

Each rival is an Estimator. A tool takes part where it is installed and where it claims an answer: what it
does not know (adapters, several GPUs) is not put to it, and what it refuses is refused. A rival that states
no time, or no memory, leaves that part of the profile empty.

`6nd`              6 FLOPs per parameter and token at 40 % of the GPU's peak: Kaplan et al. 2020,
                   arXiv:2001.08361, section 2.1, with the utilisation that people assume; time alone
`xia2024`          equation 2 of the seed paper, fitted to the other batches of a row's own sweep; time alone
`llm-analysis`     its training analysis at its default efficiencies; memory and time
`accelerate`       `accelerate estimate-memory`: the largest of its four figures; memory alone
`deepspeed`        its ZeRO-2 and ZeRO-3 estimators: states of the model; memory alone
`memtracker`       torch's MemTracker over a step of transformers' model in fake tensors; memory alone
`unsloth`          the formula by which Unsloth Studio picks GPUs; memory alone
`ftuneai`          its estimates of memory and time
`fitcheck-llm`     its estimate for one GPU; memory alone
`canifinetune`     its estimate for one GPU, without its safety margin; memory alone
`torch-kitsune`    its estimate for one GPU; memory alone
`train-in-silence` its estimates of memory, and of time at its planner's utilisation

The tools made to say whether a fine-tuning fits stand below: each is told the run in its own words.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import module_from_spec, spec_from_file_location
from json import dumps, loads
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

from finegauge.catalogue.gpus import gpu
from finegauge.errors import InputError, UnsupportedError, did_you_mean
from finegauge.formats.measurement_tables import MeasuredRow
from finegauge.model.graph import build
from finegauge.profile import Profile
from finegauge.run.run import Run
from finegauge.units import GIB, MIB
from finegauge.validation import rival_formulas as formulas
from finegauge.validation.rival_formulas import Estimator, SeedLaw, answered, refusing, six_n_d

METHODS = ("full", "lora", "qlora")
SHARDINGS = {
    "none": "none", "zero1": "zero_1", "zero2": "zero_2", "zero3": "zero_3",
    "fsdp": "fsdp", "fsdp_shard_grad_op": "fsdp_shard_grad",
}  # fmt: skip
FTUNE_GPUS = {
    "A100-SXM4-80GB": "A100-80GB", "A800-SXM4-80GB": "A100-80GB", "A100-SXM4-40GB": "A100-40GB",
    "H100-SXM5-80GB": "H100-80GB", "H200-SXM-141GB": "H200-141GB", "L4": "L4-24GB", "T4": "T4-16GB",
    "RTX 4090": "RTX-4090-24GB", "RTX 3090": "RTX-3090-24GB", "A10G": "A10G-24GB",
}  # fmt: skip
MANY_STEPS = 10_000_000  # ftuneai rounds hours to hundredths
LAYERS = ("layers.", "h.", "blocks.")  # as transformers calls them: every projection in them
ATTENTION = {"flash": "flash_attention_2"}
WIDE = {"gate_proj", "up_proj", "down_proj", "all-linear", "w1", "w2", "w3"}


def unsloth(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return the estimate by which Unsloth Studio picks GPUs, from the package's own file."""
    studio = _unsloth_module()

    def ask(run: Run) -> Profile:
        own: dict[str, Any] = {"tie_word_embeddings": build(run).model.head is None}
        own |= _figures(run, "num_hidden_layers", "num_key_value_heads") | dict(run.config)
        arch = studio.extract_arch_config(_namespace(own))
        if arch is None:
            raise ValueError("its reader finds no architecture in the model's config")
        checkpointing = {"none": "none", "offload": "unsloth"}.get(run.activation_checkpointing, "true")
        asked = studio.TrainingVramConfig(
            training_method=run.method,
            batch_size=run.micro_batch_size,
            max_seq_length=run.seq_len,
            lora_rank=run.lora_rank,
            target_modules="all-linear" if "all-linear" in run.lora_targets else list(run.lora_targets),
            gradient_checkpointing="unsloth" if "nsloth" in str(run.framework) else checkpointing,
            optimizer=_optimizer(run, "adamw_torch"),
            load_in_4bit=run.method == "qlora",
            attention_implementation=ATTENTION.get(run.attention, run.attention),
        )
        said = studio.estimate_training_vram(arch, asked)
        total = said.total if run.sharding == "none" else said.min_gpu_vram(run.num_gpus)
        return answered(run, "unsloth", memory=float(total))  # fitted together: no part is left off

    return _of_known("unsloth", ask, data_parallel=True)


def ftuneai(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return ftuneai's estimates; its list has a few models, its formulas take any."""
    kinds, memory = import_module("ftuneai.core.models"), import_module("ftuneai.core.memory")
    time, loader = import_module("ftuneai.core.time"), import_module("ftuneai.loader")

    def ask(run: Run) -> Profile:
        spec = kinds.ModelSpec(
            name=str(run.model),
            parameters=round(build(run).model.num_parameters),
            max_seq_length=run.seq_len,
            default_dtype="float32" if _all_fp32(run) else "bfloat16",
            **_figures(run, "num_layers", "num_kv_heads"),
            **_experts(run, "num_experts", "num_active_experts"),
        )
        spec.is_moe = spec.num_experts is not None
        wide, pair = bool(WIDE & set(run.lora_targets)), set(run.lora_targets) <= {"q_proj", "v_proj"}
        asked = kinds.TrainingConfig(
            model=str(run.model),
            method=kinds.FineTuneMethod(run.method),
            quantization=kinds.Quantization({"q": "4bit"}.get(run.method[0], "none")),
            batch_size=run.micro_batch_size,
            seq_length=run.seq_len,
            gradient_checkpointing=run.activation_checkpointing != "none",
            optimizer=kinds.OptimizerType({"sgd": "sgd"}.get(_optimizer(run, "adamw"), "adamw")),
            lora_rank=run.lora_rank,
            lora_target=kinds.LoRATarget("all_linear" if wide else "attention" if pair else "attention_all"),
            flash_attention=run.attention != "eager",
            sharding=kinds.ShardingStrategy(SHARDINGS[run.sharding]),
            num_gpus=run.num_gpus,
        )
        if "8bit" in run.optimizer:
            asked.optimizer = kinds.OptimizerType("adam_8bit")
        said, seconds = memory.MemoryEstimator(spec, asked).estimate(), 0.0
        known = FTUNE_GPUS.get(gpu(str(run.gpu)).name)
        if known is not None:
            found = time.TimeEstimator(spec, asked).estimate(
                gpu=loader.get_gpu(known), epochs=1, num_gpus=run.num_gpus,
                dataset_size=run.global_batch_size * MANY_STEPS, avg_seq_length=run.seq_len,
            )  # fmt: skip
            seconds = found.total_hours * 3600 / MANY_STEPS
        beside = said.overhead_gb * GIB
        return answered(run, "ftuneai", seconds=seconds, memory=said.total_gb * GIB - beside, beside=beside)

    return _of_known("ftuneai", ask, data_parallel=True)


def fitcheck(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return fitcheck-llm's estimate, told the parameter count that it would ask the Hub for."""
    parser: Any = import_module("fitcheck.config_parser")
    lora = import_module("fitcheck.memory.lora")
    estimator, gpus = import_module("fitcheck.estimator"), import_module("fitcheck.gpu_db")

    def ask(run: Run) -> Profile:
        with TemporaryDirectory(prefix="finegauge-") as folder:
            path = Path(folder) / "config.json"
            path.write_text(dumps(dict(run.config)), "utf-8")
            parser.hf_hub_download = lambda **_: str(path)
            parser._reported_param_count = lambda *_: round(build(run).model.num_parameters)
            model = parser.fetch_model_config(str(run.model))
        every = "all-linear" in run.lora_targets
        whole = {"full": None}.get(run.method, run.lora_rank)
        mixed = {"none": run.weights_dtype}.get(run.autocast, run.autocast)
        asked = estimator.TrainingConfig(
            precision=mixed if mixed in ("bf16", "fp16", "fp32") else "bf16",
            quantization="nf4" if run.method == "qlora" else "none",
            double_quant=run.weights_dtype == "nf4_dq",
            optimizer="adamw_8bit" if "8bit" in run.optimizer else run.optimizer,
            batch_size=run.micro_batch_size,
            seq_len=run.seq_len,
            lora_rank=whole,
            lora_targets=list(lora.LORA_TARGETS_FULL if every else run.lora_targets),
            grad_checkpoint=run.activation_checkpointing != "none",
            flash_attn=run.attention != "eager",
        )
        card = gpu(str(run.gpu))
        room = round(card.usable_bytes / MIB)
        spec = gpus.GPU_DB["t4"] if card.name == "T4" else gpus.GpuSpec(card.name, room, room)
        said = estimator.estimate(model, asked, spec)
        beside = said.overhead_mib * MIB
        return answered(run, "fitcheck-llm", memory=said.total_mib * MIB - beside, beside=beside)

    return _of_known("fitcheck-llm", ask, one_gpu=True)


def canifinetune(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return canifinetune's estimate of one GPU; what it adds for safety alone is left off."""
    tool = import_module("canifinetune.estimator.memory")

    def ask(run: Run) -> Profile:
        experts = _experts(run, "num_local_experts", "num_experts_per_tok")
        spec: dict[str, Any] = {
            **_figures(run, "num_hidden_layers", "num_key_value_heads"),
            **{name: value for name, value in experts.items() if value},
            "family": str(run.config.get("model_type")),
            "tie_word_embeddings": build(run).model.head is None,
            "total_params": round(build(run).model.num_parameters),
        }
        dtype = run.weights_dtype if run.weights_dtype in ("fp32", "fp16", "bf16") else run.autocast
        asked = tool.EstimateRequest(
            model_id=str(run.model),
            override=spec,
            use_network=False,
            method=run.method,
            quantization={"nf4_dq": "nf4_double_quant"}.get(run.weights_dtype, run.weights_dtype),
            seq_len=run.seq_len,
            micro_batch_size=run.micro_batch_size,
            base_dtype=dtype if dtype in ("fp32", "fp16", "bf16") else "bf16",
            lora_rank=run.lora_rank,
            lora_target_scope="all_linear" if WIDE & set(run.lora_targets) else "attention",
            optimizer=_optimizer(run, "adamw_torch"),
            gradient_checkpointing=run.activation_checkpointing != "none",
            attention_implementation=ATTENTION.get(run.attention, run.attention),
            gpu_vram_gb=gpu(str(run.gpu)).usable_bytes / GIB,
        )
        said = tool.estimate(asked).memory
        beside = said.cuda_overhead_gb * GIB
        total = (said.total_estimated_gb - said.safety_margin_gb) * GIB
        return answered(run, "canifinetune", memory=total - beside, beside=beside)

    return _of_known("canifinetune", ask, one_gpu=True)


def kitsune(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return torch-kitsune's estimate of one GPU, of transformers' model without storage."""
    tool = import_module("kitsune.predict")

    def ask(run: Run) -> Profile:
        # it counts 4-bit weights as an eighth of what the model holds: of fp32
        dtype = "float32" if run.method == "qlora" or run.weights_dtype == "fp32" else "bfloat16"
        model = _unstored_model(dumps(dict(run.config), sort_keys=True), dtype)
        asked = {"model": model, "input_shape": (run.seq_len,), "batch_size": run.micro_batch_size}
        if run.method == "full":
            said = tool.predict_memory(
                **asked, dtype=dtype, optimizer=_optimizer(run, "adamw"), training=True
            )
        else:
            names = LAYERS if "all-linear" in run.lora_targets else run.lora_targets
            adapters = tool.LoRAConfig(run.lora_rank, names, use_qlora=run.method == "qlora")
            said = tool.estimate_lora_memory(**asked, dtype="bfloat16", config=adapters)
        beside = float(said.overhead_bytes)
        return answered(run, "torch-kitsune", memory=float(said.total_bytes) - beside, beside=beside)

    return _of_known("torch-kitsune", ask, one_gpu=True)


@lru_cache(maxsize=1)
def _unstored_model(figures: str, dtype: str) -> Any:
    torch, transformers = import_module("torch"), import_module("transformers")
    config = transformers.AutoConfig.for_model(**loads(figures))
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()


def train_in_silence(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return Train-in-Silence's estimate of memory, and of time by its planner: computing alone."""
    tool, kinds = import_module("tis.planner.estimator"), import_module("tis.planner.models")

    def ask(run: Run) -> Profile:
        heads = _figures(run, "num_layers", "num_kv_heads")
        experts = _experts(run, "num_experts", "active_experts")
        model = kinds.ModelSpec(
            name=str(run.model), params=round(build(run).model.num_parameters),
            num_layers=heads["num_layers"], num_heads=heads["num_attention_heads"],
            num_kv_heads=heads["num_kv_heads"], hidden_dim=heads["hidden_size"],
            vocab_size=heads["vocab_size"], **{name: value or 0 for name, value in experts.items()},
        )  # fmt: skip
        asked = kinds.TrainingSpec(
            method=run.method, precision="fp32" if _all_fp32(run) else "bf16",
            batch_size=run.micro_batch_size, grad_accum=run.gradient_accumulation_steps, seq_len=run.seq_len,
        )  # fmt: skip
        data = kinds.DataSpec(dataset_tokens=run.global_batch_size * run.seq_len)
        said = tool.ResourceEstimator().estimate(kinds.Workload(model=model, training=asked, data=data))
        used = 0.45 if run.num_gpus == 1 else 0.35  # tis/planner/optimizer.py, 0.1.6
        peak = gpu(str(run.gpu)).peak_flops_per_s("fp16") * run.num_gpus
        seconds = said.total_flops / (peak * used)
        return answered(run, "train-in-silence", seconds=seconds, memory=said.required_vram_gb * GIB)

    return _of_known("train-in-silence", ask)


def _unsloth_module() -> ModuleType:
    """Return the file of Unsloth Studio that holds the formula; the package around it wants a GPU."""
    try:
        place = distribution("unsloth").locate_file("studio/backend/utils/hardware/vram_estimation.py")
    except PackageNotFoundError as error:
        raise ImportError(str(error)) from None
    spec = spec_from_file_location("unsloth_vram_estimation", str(place))
    if spec is None or spec.loader is None or not Path(str(place)).is_file():
        raise ImportError("this unsloth has no studio/backend/utils/hardware/vram_estimation.py")
    module = sys.modules[spec.name] = module_from_spec(spec)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def _of_known(name: str, ask: Estimator, *, one_gpu: bool = False, data_parallel: bool = False) -> Estimator:
    """Return `ask` for the runs that a tool claims to know: on one GPU, or with no parallelism but data's."""

    def asked(run: Run) -> Profile:
        if run.method not in METHODS or run.phase not in ("sft", "pretrain"):
            raise UnsupportedError(f"{name} knows {', '.join(METHODS)}, not {run.method} in {run.phase}.")
        if one_gpu and run.num_gpus > 1:
            raise UnsupportedError(f"{name} knows one GPU.")
        divided = run.tensor_parallel * run.pipeline_parallel * run.context_parallel > 1
        if data_parallel and (divided or run.sharding not in SHARDINGS):
            raise UnsupportedError(f"{name} knows neither tensor, pipeline nor context parallelism.")
        return ask(run)

    return refusing(name, asked)


def _figures(run: Run, layers: str, kv_heads: str) -> dict[str, int]:
    """Return the model's sizes under the names that most tools share."""
    config: Mapping[str, Any] = run.config
    architecture = build(run).model
    heads = config.get("num_attention_heads") or config.get("n_head") or config.get("n_heads")
    if not heads:
        raise UnsupportedError(f"{run.model} has no attention heads, which the tool asks for.")
    wide = config.get("intermediate_size") or config.get("n_inner") or config.get("ffn_dim")
    return {
        "hidden_size": architecture.hidden_size,
        layers: architecture.num_layers,
        "num_attention_heads": heads,
        kv_heads: config.get("num_key_value_heads") or heads,
        "intermediate_size": wide or 4 * architecture.hidden_size,
        "vocab_size": architecture.vocab_size,
    }


def _experts(run: Run, num: str, active: str) -> dict[str, int | None]:
    config: Mapping[str, Any] = run.config
    found = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts")
    return {num: found, active: config.get("num_experts_per_tok") if found else None}


def _all_fp32(run: Run) -> bool:
    return run.weights_dtype == "fp32" and run.autocast == "none"


def _optimizer(run: Run, otherwise: str) -> str:
    known = ("sgd", "adamw_8bit", "paged_adamw_8bit")
    return run.optimizer if run.optimizer in known else otherwise


def _namespace(config: Mapping[str, Any]) -> SimpleNamespace:
    nested: Callable[[Any], Any] = lambda value: _namespace(value) if isinstance(value, dict) else value  # noqa: E731
    return SimpleNamespace(**{name: nested(value) for name, value in config.items()})


RIVALS: dict[str, Callable[[Sequence[MeasuredRow]], Estimator]] = {
    "6nd": six_n_d,
    "xia2024": SeedLaw,
    "llm-analysis": formulas.llm_analysis,
    "accelerate": formulas.accelerate,
    "deepspeed": formulas.deepspeed,
    "memtracker": formulas.memtracker,
    "unsloth": unsloth,
    "ftuneai": ftuneai,
    "fitcheck-llm": fitcheck,
    "canifinetune": canifinetune,
    "torch-kitsune": kitsune,
    "train-in-silence": train_in_silence,
}
SLOW = {"memtracker"}  # a minute a row: asked where it is named
PACKAGES = {"memtracker": "torch transformers", "unsloth": "--no-deps unsloth"}  # where not the rival's name


def rivals(
    names: Iterable[str], rows: Sequence[MeasuredRow] = ()
) -> tuple[dict[str, Estimator], dict[str, str]]:
    """Return the rivals called `names` ("all": all but the slow) that can answer here, and why others cannot.

    The seed paper's law is fitted to `rows`; the other rivals do not see them.

    Raises: InputError for a name that no rival has.
    """
    found: dict[str, Estimator] = {}
    absent: dict[str, str] = {}
    wanted = list(names)
    for name in [one for one in RIVALS if one not in SLOW] if "all" in wanted else wanted:
        if name not in RIVALS:
            hint = did_you_mean(name, RIVALS)
            raise InputError(f"No rival named '{name[:60]}'.{hint} There are {', '.join(RIVALS)} and all.")
        try:
            found[name] = RIVALS[name](rows)
        except ImportError as error:
            package = PACKAGES.get(name, name)
            absent[name] = f"not installed here ({error}); pip install {package} into the same environment"
    return found, absent
