"""The commands that a photograph is taken of: the public surface alone, deterministic, without torch."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from glob import glob
from itertools import pairwise, product
from typing import Any

SHARED = "../shared/data"
REFERENCE = "../shared/reference/configs"
GPUS = "A100-80GB,H100,RTX 4090"
MIXTRAL = "examples/mixtral_qlora_commonsense.yaml"
BLACKMAMBA = "examples/blackmamba_full.yaml"
LLAMA = "examples/plans/llama2_7b_lora.yaml"
LARGE = "examples/plans/llama3_70b_full.yaml"
MANY_EXPERTS = "examples/plans/qwen3_30b_lora.yaml"
PLANS = {  # as their first lines say
    LLAMA: ("--within", "8h"),
    LARGE: ("--keep-method", "--within", "48h"),
    "examples/plans/llama3_70b_qlora.yaml": ("--budget", "150", "--minimise", "time"),
    "examples/plans/mamba_full.yaml": ("--keep-method", "--spot"),
    "examples/plans/mixtral_qlora.yaml": ("--keep-method", "--minimise", "energy"),
    MANY_EXPERTS: ("--keep-method", "--within", "10h", "--max-gpus", "8"),
}
EXAMPLES = (
    *(MIXTRAL, "examples/mixtral_qlora_math.yaml", BLACKMAMBA, "examples/tiny_moe.yaml"),
    *(f"examples/modules/{name}.yaml" for name in ("pretrain", "finetune", "serve")),
)
FRAMEWORKS = (
    *("llamafactory", "axolotl", "trl", "torchtune", "nemo", "ms-swift", "unsloth", "torchtitan"),
    *("deepspeed", "skypilot", "finegauge"),
)
COMMANDS = (
    *("estimate", "read", "explain", "check", "max-batch", "max-length", "data", "plan", "whatif", "measure"),
    *("micro", "campaign", "compare", "results", "report", "validate", "reproduce", "calibrate", "trace"),
    *("serve", "mcp", "models list", "models show", "gpus list", "gpus show", "offers", "datasets list"),
    "datasets show",
)
OVERRIDES = """
method=full|method=lora|method=qlora|method=gptq_lora|method=freeze
method=freeze freeze_trainable_layers=5|phase=pretrain|phase=reward|phase=dpo|phase=ppo|phase=grpo
phase=grpo num_generations=4 max_new_tokens=100|phase=evaluate|phase=prefill|phase=decode
phase=decode max_new_tokens=64 micro_batch_size=16|num_experts_per_tok=all|num_experts_per_tok=1
lora_rank=64|lora_targets=attention|lora_targets=q_proj,v_proj|lora_dropout=0.05
trainable_extra=embed_tokens,lm_head|trainable_extra=norms|weights_dtype=fp16|weights_dtype=fp32
weights_dtype=fp32 autocast=bf16|weights_dtype=fp32 autocast=fp16|weights_dtype=fp8|weights_dtype=int8
weights_dtype=nf4|adapter_dtype=fp32|fp8=true|upcast_unquantized=true|optimizer=adamw_8bit
optimizer=paged_adamw|optimizer=paged_adamw_8bit|optimizer=adafactor|optimizer=lion|optimizer=lion_8bit
optimizer=sgd|optimizer_implementation=loop|optimizer_implementation=in_backward
activation_checkpointing=none|activation_checkpointing=full|activation_checkpointing=selective
activation_checkpointing=offload|checkpointing_reentrant=false activation_checkpointing=full
synchronous=true|attention=sdpa|attention=flash|attention=eager|kernels=liger|kernels=unsloth
kernels=foak|kernels=megatron|attention=flash kernels=flash3|attention=flash kernels=triton|loss=fused
loss=chunked|experts_implementation=eager|experts_implementation=grouped_mm|ssm_kernels=slow
compile=true|transformers_version=4.40|transformers_version=4.57|bitsandbytes_version=0.42
bitsandbytes_version=0.45|framework=trl framework_version=0.18|framework=torchtune framework_version=0.2
framework=axolotl|framework=torchtitan|framework=nemo|framework=unsloth|framework=ms-swift
framework=llamafactory|dataset=commonsense_15k|dataset=math_14k|dataset=instructions-of-300-tokens
dataset=math_14k packing=true|dataset=math_14k packing=true packing_strategy=first_fit
dataset=math_14k packing=true packing_strategy=wrapped|dataset=math_14k padding=free
dataset=math_14k padding=max|dataset=math_14k group_by_length=true
dataset=math_14k seq_len=128 over_length=drop|dataset=math_14k seq_len=128 over_length=split
dataset=math_14k validation_fraction=0.1|dataset=math_14k num_samples=5000
num_samples=5000 max_steps=100|pad_to_multiple_of=64 dataset=math_14k|seq_len=512|seq_len=8192
micro_batch_size=8|micro_batch_size=3|gradient_accumulation_steps=8|epochs=2.5|eval_samples=200
saves_per_epoch=4|startup_s=60|num_gpus=8|num_gpus=2 sharding=zero1|num_gpus=4 sharding=zero2
num_gpus=8 sharding=zero3|num_gpus=8 sharding=fsdp|num_gpus=8 sharding=fsdp_shard_grad_op
num_gpus=16 num_nodes=2 sharding=hybrid data_parallel_shard=8
num_gpus=8 sharding=zero3 cpu_offload=optimizer|num_gpus=8 sharding=zero3 cpu_offload=all
num_gpus=8 sharding=zero3 cpu_offload=nvme|num_gpus=4 sharding=fsdp cpu_offload=params
cpu_offload=optimizer|num_gpus=4 tensor_parallel=4|num_gpus=8 tensor_parallel=4 sequence_parallel=true
num_gpus=4 pipeline_parallel=4|num_gpus=4 pipeline_parallel=4 gradient_accumulation_steps=16
num_gpus=4 pipeline_parallel=2 pipeline_schedule=gpipe
num_gpus=4 pipeline_parallel=4 pipeline_schedule=naive|num_gpus=4 context_parallel=4
num_gpus=8 pipeline_parallel=4 virtual_pipeline_stages=2 gradient_accumulation_steps=8
num_gpus=8 expert_parallel=8|num_gpus=8 expert_parallel=4 sharding=fsdp
num_gpus=8 tensor_parallel=2 expert_parallel=2|num_gpus=64 num_nodes=8 sharding=fsdp
num_gpus=64 num_nodes=8 sharding=zero3 node_network_gbit_per_s=200
num_gpus=32 num_nodes=4 tensor_parallel=8 pipeline_parallel=4 gradient_accumulation_steps=8|provider=aws
provider=runpod|region=eu-west-1|gpu=MI300X|gpu=T4|gpu=L4|gpu=B200|gpu=V100|micro_batch_size=0
tensor_parallel=3|no_such_field=1|gpu=no-such-gpu|num_gpus=0
"""
SWEEP = """
name: own
run: {model: llama-3-8b, method: lora, gpu: a100-80gb, dataset: commonsense_15k, seq_len: 1024}
axes:
  micro_batch_size: [1, 2, max]
  switch: [baseline, checkpointing, 8bit-optimizer+fused-loss, zero3, qlora]
predicted: {axes: {gpu: [a40, h100]}}
"""
OWN_TABLE = (
    "id,source,model,method,gpu,attention,activation_checkpointing,packing,seq_len,micro_batch_size,step_time_s\n"
    "a,mine,qwen3-0.6b,full,A40,fa2,full,true,1024,1,0.9\n"
    "b,mine,qwen3-0.6b,full,A40,fa2,full,true,1024,4,1.9\n"
    "c,mine,qwen3-0.6b,lora,A40,fa2,none,true,1024,2,0.5\n"
)
LAW_TABLE = "batch,sparsity,samples_per_s\n" + "".join(
    f"{batch},{sparsity},{batch / (0.3 + batch * (0.1 + 0.4 * sparsity)):.6f}\n"
    for batch, sparsity in product((1, 2, 3, 4, 6, 8), (0.25, 1.0))
)
MAX_BATCH_TABLE = "max_batch,gpu_memory_gb,model_memory_gb,seq_len,sparsity\n" + "".join(
    f"{int(2000 * (gb - 24) / (length * (0.3 + 0.7 * sparsity)))},{gb},24,{length},{sparsity}\n"
    for gb, length, sparsity in product((40, 48, 80), (128, 256), (0.25, 1.0))
)
OWN_GPU = """
name: X900-SXM-512GB
aliases: [x900]
memory_bytes: 512e9
memory_bytes_per_s: 20e12
flops_per_s: {bf16: 9e15, fp8: 18e15, fp32: 150e12}
board_power_w: 1800
nvlink_bytes_per_s: 1.8e12
num_sms: 200
source: announced for 2028
"""

Words = tuple[str, ...]
Ask = Callable[[Words], str]  # what a command prints


@dataclass(frozen=True)
class Case:
    """Commands that run one after the other in a folder of their own, `{tmp}` in their words."""

    part: str
    steps: tuple[Words, ...]
    files: dict[str, str] = field(default_factory=dict)
    quick: bool = False


def cases(ask: Ask) -> Iterator[Case]:
    """Return every case; `ask` lists the catalogue's names."""
    yield from _heavy()
    yield from _examples()
    yield from _plans()
    yield from _catalogue(ask)
    yield from _configs()
    yield from _fields()
    yield from _frameworks()
    yield from _tables()
    yield from _data()
    yield from _screens()


def _one(part: str, *words: str, quick: bool = False) -> Case:
    return Case(part, (words,), quick=quick)


def _heavy() -> Iterator[Case]:
    """Campaigns and the reproduction, first: they take longest."""
    after = (
        ("results", "{tmp}/folder", "--json", "--limit", "100000"),
        ("compare", "{tmp}/folder", "--json"),
        ("report", "{tmp}/folder", "--json"),
    )
    for name in ("xia2024", "dissecting", "deepspeed_chat"):
        predict = ("campaign", name, "--only", "predicted", "-o", "{tmp}/folder", "--json")
        yield Case("campaigns", (predict, *after))
    own = ("campaign", "{tmp}/own.yaml", "-o", "{tmp}/folder", "--json")
    sql = "SELECT gpu, count(*) AS n, sum(step_time_s) AS s FROM results GROUP BY gpu ORDER BY gpu"
    more = (
        ("compare", "{tmp}/folder", "--at", "gpu=h100", "--json"),
        (
            "results",
            "{tmp}/folder",
            "--where",
            "micro_batch_size > 1",
            "--columns",
            "gpu,step_time_s",
            "--json",
        ),
        ("results", "{tmp}/folder", "--sql", sql, "--json"),
        ("campaign", "{tmp}/own.yaml", "-o", "{tmp}/folder", "--dry-run", "--json"),
        own,
    )
    yield Case("campaigns", (own, *after, *more), {"own.yaml": SWEEP}, quick=True)
    yield _one("campaigns", "campaign", "--list", "--json", quick=True)
    yield _one("reproduce", "reproduce", "xia2024", "--json")
    for item in ("table-4", "fig-13"):
        yield _one("reproduce", "reproduce", "xia2024", item, "--json", quick=True)


def _examples() -> Iterator[Case]:
    for run in (*EXAMPLES, *PLANS):
        small = run in EXAMPLES
        gpu = () if small and "tiny" not in run and "modules" not in run else ("--gpu", "H100")
        for command in ("estimate", "explain", "check", "max-batch", "max-length"):
            yield _one("examples", command, run, *gpu, "--json", quick=small)
        yield _one("examples", "read", run, "--json", quick=True)
        yield _one("examples", "estimate", run, "--gpu", GPUS, "--json", quick=small)
        yield _one("examples", "estimate", run, "--gpu", GPUS, "--at-max-batch", "--json")
        yield _one("examples", "report", run, *gpu, "--json")
        for goal in ("cost", "time", "energy", "memory"):
            words = ("whatif", run, *gpu, "--minimise", goal, "--all", "--json")
            yield _one("whatif", *words, quick=run in (MIXTRAL, LLAMA) and goal == "cost")
    yield _one("whatif", "whatif", LLAMA, "--spot", "--json")
    yield _one(
        "whatif",
        "whatif",
        LLAMA,
        "qlora",
        "H100",
        "micro_batch_size=4",
        "--set",
        "seq_len=512",
        "--json",
        quick=True,
    )
    yield _one("examples", "read", *sorted(glob("examples/*.yaml")), "--json", quick=True)
    yield _one("examples", "check", *EXAMPLES[:3], "--gpu", "A40,H100", "--json", quick=True)
    yield _one("examples", "check", LLAMA, MIXTRAL, "README.md", "--skip-others", "--json", quick=True)
    yield _one("compare", "compare", MIXTRAL, EXAMPLES[1], BLACKMAMBA, "--gpu", "A40", "--json", quick=True)
    yield _one("compare", "compare", *PLANS, "--gpu", "H100", "--json")
    own = ("estimate", LLAMA, "--gpu", "{tmp}/gpu.yaml", "--json")
    yield Case(
        "examples", (own, ("gpus", "show", "{tmp}/gpu.yaml", "--json")), {"gpu.yaml": OWN_GPU}, quick=True
    )
    words = ("report", "{tmp}/saved.json", "--json")
    yield Case("examples", (("plan", LLAMA, "--json", ">", "{tmp}/saved.json"), words))
    yield Case("examples", (("explain", MIXTRAL, "--json", ">", "{tmp}/saved.json"), words), quick=True)


def _plans() -> Iterator[Case]:
    for run, options in PLANS.items():
        yield _one("plans", "plan", run, *options, "--json", quick=run == LLAMA)
        yield _one("plans", "plan", run, "--json")
        for goal in ("cost", "time", "energy"):
            yield _one("plans", "plan", run, "--minimise", goal, "--spot", "--max-gpus", "16", "--json")
        yield _one("plans", "plan", run, "--within", "1h", "--budget", "5", "--json")
        yield _one("plans", "plan", run, "--gpu", "A100-80GB,RTX 4090", "--risk", "0.3", "--json")
        yield _one("plans", "report", run, "--plan", "--json")
    for run in (MIXTRAL, BLACKMAMBA):
        yield _one("plans", "plan", run, "--json")


def _catalogue(ask: Ask) -> Iterator[Case]:
    names = {
        kind: [str(row["name"]) for row in json.loads(ask((kind, "list", "--json")))]
        for kind in ("models", "gpus", "datasets")
    }
    for kind, known in names.items():
        yield _one("catalogue", kind, "list", "--json", quick=True)
        for name in known:
            yield _one("catalogue", kind, "show", name, "--json")
    yield _one("catalogue", "models", "list", "moe", "--json", quick=True)
    yield _one("catalogue", "gpus", "list", "--vendor", "AMD", "--json", quick=True)
    yield _one("catalogue", "offers", "--limit", "0", "--json")
    for options in (
        ("--gpu", "h100"),
        ("--provider", "aws"),
        ("--spot", "--sort", "gpu-price"),
        ("--count", "8"),
    ):
        yield _one("catalogue", "offers", *options, "--json", quick=True)
    for name in names["gpus"]:
        yield _one("gpus", "estimate", LLAMA, "--gpu", name, "--json")
        fp16 = ("weights_dtype=fp16", "adapter_dtype=fp16")
        yield _one("gpus", "estimate", LLAMA, *fp16, "--gpu", name, "--json")
        yield _one("gpus", "estimate", MANY_EXPERTS, "num_gpus=8", "sharding=fsdp", "--gpu", name, "--json")
    for name in names["models"]:
        yield _one("models", "explain", LLAMA, f"model={name}", "--json")
    for name in names["datasets"]:
        yield _one("datasets", "estimate", LLAMA, f"dataset={name}", "--gpu", GPUS, "--json")


def _configs() -> Iterator[Case]:
    """Every config.json of the reference collection."""
    for number, config in enumerate(sorted(glob(f"{SHARED}/hf_configs/*.json"))):
        yield _one("configs", "models", "show", config, "--json")
        for method in ("full", "lora", "qlora"):
            words = ("estimate", config, f"method={method}", "--gpu", GPUS, "--json")
            yield _one("configs", *words, quick=number % 11 == 0)


def _fields() -> Iterator[Case]:
    """Every value of every field, over runs of different kinds."""
    for settings in "|".join(OVERRIDES.strip().splitlines()).split("|"):
        quick = LLAMA if settings.startswith(("dataset", "seq_len", "group", "lora")) else MANY_EXPERTS
        quick = MIXTRAL if settings.startswith("phase") else quick
        for run in (MIXTRAL, BLACKMAMBA, LLAMA, LARGE, MANY_EXPERTS, "examples/tiny_moe.yaml"):
            gpu = () if "gpu=" in settings.split("num_gpus=")[0] else ("gpu=H100",)
            yield _one("fields", "explain", run, *gpu, *settings.split(), "--json", quick=run == quick)
    for settings in ("num_gpus=8 sharding=zero3", "method=qlora", "phase=grpo", "phase=dpo", "phase=decode"):
        for command in ("max-batch", "max-length", "check", "whatif"):
            more = settings.split()
            if command == "whatif":
                more = [word for each in more for word in ("--set", each)]
            yield _one("fields", command, MIXTRAL, *more, "--gpu", "A100-80GB", "--json")


def _frameworks() -> Iterator[Case]:
    """What other frameworks' files mean, and what runs become in them."""
    for file in sorted(path for path in glob(f"{REFERENCE}/**/*.*", recursive=True)):
        yield _one("frameworks", "read", file, "--json", quick=True)
        yield _one("frameworks", "explain", file, "gpu=H100", "--json")
        yield _one(
            "frameworks", "estimate", file, "framework_version=0.18", "--gpus", "8", "--gpu", "H100", "--json"
        )
        for framework in FRAMEWORKS:
            yield _export(file, framework)
    folder = f"{REFERENCE}/llamafactory/full_sft_qwen3_4b_z3.yaml"
    for other in ("deepspeed/z2_auto.json", "deepspeed/z3_auto.json"):
        yield _one(
            "frameworks",
            "explain",
            folder,
            "--deepspeed",
            f"{REFERENCE}/{other}",
            "--gpus",
            "8",
            "gpu=H100",
            "--json",
        )
    for other in ("ddp_4gpu", "fsdp2_2gpu_offload", "deepspeed_z3_2nodes"):
        for file in (f"{REFERENCE}/trl/sft_full_defaults.yaml", LLAMA):
            words = (
                "explain",
                file,
                "--accelerate",
                f"{REFERENCE}/accelerate/{other}.yaml",
                "gpu=H100",
                "--json",
            )
            yield _one("frameworks", *words)
    for run, framework in product((*EXAMPLES, *PLANS), FRAMEWORKS):
        yield _export(run, framework, quick=run == LLAMA)
    for framework in FRAMEWORKS:
        yield _export(
            LARGE, framework, "tensor_parallel=8", "num_gpus=32", "num_nodes=4", "pipeline_parallel=2"
        )
        yield _export(
            LLAMA, framework, "method=qlora", "dataset=math_14k", "padding=free", "optimizer=paged_adamw_8bit"
        )
        yield _export(LLAMA, framework, "method=full", "num_gpus=8", "sharding=zero3", "cpu_offload=all")


def _export(run: str, framework: str, *settings: str, quick: bool = False) -> Case:
    """Write `run` for a framework, and read back what was written."""
    write = ("read", run, *settings, "--export", framework, "-o", "{tmp}/export", "--json")
    return Case("exports", (write, ("read", "{tmp}/export/*", "--json")), quick=quick)


def _tables() -> Iterator[Case]:
    """Measurement tables: validated, and constants or laws fitted to them."""
    yield _one("validate", "validate", "--json")
    yield _one("validate", "validate", "--against", "6nd,xia2024", "--json")
    for table in sorted(glob(f"{SHARED}/measurements/*.csv")):
        yield _one("validate", "validate", table, "--json", quick="qwen1" in table or "fms" in table)
    yield Case("validate", (("validate", "{tmp}/own.csv", "--json"),), {"own.csv": OWN_TABLE}, quick=True)
    dated = ("--name", "own", "--date", "2026-11-21", "--json")
    for options in ((), ("--from-datasheet",)):
        words = ("calibrate", "{tmp}/own.csv", *options, *dated)
        yield Case("calibrate", (words,), {"own.csv": OWN_TABLE}, quick=not options)
    yield _one("calibrate", "calibrate", f"{SHARED}/measurements/qwen1-readme.csv", *dated)
    for law in ("affine", "xia-eq2", "xia-eq2-printed", "xia-eq1"):
        table = MAX_BATCH_TABLE if law == "xia-eq1" else LAW_TABLE
        fit = ("calibrate", "{tmp}/own.csv", "--law", law, "--name", f"own-{law}", "--json")
        use = ("estimate", MIXTRAL, "--law", f"own-{law}", "--gpu", "a40", "--json")
        yield Case("calibrate", (fit, use), {"own.csv": table}, quick=law == "affine")


def _data() -> Iterator[Case]:
    """Data sets in files, counted by a tokenizer that knows letters."""
    words = ("red", "orange", "yellow", "green", "blue", "indigo", "violet")
    texts = [" ".join(words[i % 7] for i in range(n)) for n in range(3, 160)]
    sets = {
        "text.jsonl": [{"text": text} for text in texts],
        "alpaca.jsonl": [{"instruction": a, "input": "", "output": b} for a, b in pairwise(texts)],
        "pairs.jsonl": [{"prompt": a, "completion": b} for a, b in zip(texts, texts[5:], strict=False)],
        "lengths.csv": [],
    }
    vocabulary = {
        letter: n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz .,:#\n?'ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    }
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
        "added_tokens": [],
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    }
    beside = {"model/tokenizer.json": json.dumps(tokenizer)}
    lengths = "length,count\n" + "".join(f"{n * 17},{n % 5 + 1}\n" for n in range(1, 90))
    for name, rows in sets.items():
        text = "".join(json.dumps(row) + "\n" for row in rows) if rows else lengths
        tokens = ("--tokenizer", "{tmp}/model") if rows else ()
        of_run = (f"dataset={{tmp}}/{name}", *(["tokenizer={tmp}/model"] if rows else []))
        steps = (
            ("data", f"{{tmp}}/{name}", *tokens, "--json"),
            ("data", f"{{tmp}}/{name}", *tokens, "--run", LLAMA, "--gpu", "A40,H100", "--json"),
            ("data", f"{{tmp}}/{name}", *tokens, "--run", LLAMA, "packing=true", "--json"),
            ("explain", LLAMA, *of_run, "--json"),
            ("datasets", "show", f"{{tmp}}/{name}", "--json"),
        )
        yield Case("data", steps, {**beside, name: text}, quick=True)


def _screens() -> Iterator[Case]:
    """What people see: flags of every command, and text, held apart from numbers."""
    for command in COMMANDS:
        yield _one("help", *command.split(), "--help", quick=True)
    for run in (MIXTRAL, BLACKMAMBA, LLAMA):
        for command in (
            "estimate",
            "explain",
            "check",
            "max-batch",
            "max-length",
            "read",
            "whatif",
            "plan",
            "report",
        ):
            yield _one("screens", command, run, quick=run == LLAMA and command != "plan")
    yield _one("screens", "reproduce", "xia2024")
    yield _one("screens", "validate")
    for kind in ("models", "gpus", "datasets"):
        yield _one("screens", kind, "list", quick=True)
    yield _one("screens", "whatif", "--list", quick=True)
    yield _one("screens", "offers", "--gpu", "h100", quick=True)
    for words in (
        "estimate no-such-file.yaml",
        "gpus show nothing",
        "no-such-command",
        "estimate",
        "plan --within soon",
    ):
        yield _one("screens", *words.split(), quick=True)
