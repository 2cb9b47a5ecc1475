"""The fields of a run: what each accepts, its default and its meaning, once.

Overrides, docs/run-file.md, the JSON schema, the page's form and completion follow from it.
"""

from collections.abc import Iterator

from finegauge.catalogue.gpus import gpus
from finegauge.run import options, rules
from finegauge.run.field import Field, choice, choices, flag, names, number, spec, text, whole
from finegauge.run.machine import MAX_GPUS, MAX_SEQ_LEN, MachineFields


class Fields(MachineFields):
    """Every field of a run; a value is None until the run is settled."""

    # Model and method
    model: str = spec(
        text, "catalogue name, Hugging Face id, `config.json`, or a folder that holds one", label="Model"
    )
    method: str = spec(
        choice({**options.METHODS, "freeze": "last layers"}, options.METHOD_ALIASES),
        "{options}",
        label="Method",
    )
    phase: str = spec(
        choice(options.PHASES, {"pt": "pretrain", "rm": "reward", "eval": "evaluate"}),
        "{options}; see [phases](phases.md)",
        "sft",
        "Phase",
    )
    task: str | None = spec(
        choice(options.TASKS, options.TASK_ALIASES),
        "the head that the model has: {options}; see [tasks](tasks.md). None: `causal_lm`, `masked_lm` of "
        "encoders, `seq2seq_lm` of an encoder and a decoder",
        label="Task",
    )
    num_labels: int = spec(
        whole(1, 1_000_000, "labels"), "outputs of a head that classifies (1: regression)", 2, "Labels"
    )
    target_seq_len: int | None = spec(
        whole(1, MAX_SEQ_LEN, "tokens"),
        "of an encoder and its decoder (T5, BART, Whisper): the length of every target, beside the source's "
        "`seq_len`; they need it",
        label="Target length",
    )
    num_experts_per_tok: int | None = spec(
        whole(1, 100_000, words={"all": ""}),
        "active experts per token; none: as the model says; `all`: dense fine-tuning",
    )
    expert_capacity_factor: float | None = spec(
        number(0.01, 1000.0),
        "rows that each routed expert computes over an even share, however tokens choose: the rest is "
        "dropped, or padded (`moe_expert_capacity_factor` with `moe_pad_expert_input_to_capacity` of "
        "Megatron); none: those of the tokens that chose it",
    )
    adapter: str = spec(
        choice(options.ADAPTERS, options.ADAPTER_ALIASES),
        "what trains beside the frozen weights with `method: lora`, `qlora` or `gptq_lora`: {options}; see "
        "[methods](methods.md). LoRA with another start, scale or learning rate (rsLoRA, LoRA+, PiSSA) is "
        "`lora`",
        "lora",
        "Adapter",
    )
    adapter_size: int | None = spec(
        whole(1, 1_000_000),
        "of adapters that have no rank: virtual tokens of prompts and prefixes (20), tokens that train (1), "
        "blocks of `oft` (32) and `boft` (4), frequencies of `fourierft` (1,000)",
    )
    adapter_hidden_size: int | None = spec(
        whole(1, 1_000_000, "channels"),
        "of the network that makes prompts: P-tuning's, as wide as the model where not stated; prefix tuning "
        "has one only where it is stated",
    )
    lora_rank: int = spec(
        whole(1, 65_536), "of the adapters; 16, or as PEFT has it for others than LoRA", label="LoRA rank"
    )
    lora_alpha: float = spec(number(1e-6, 1e6), "scale of the adapters; twice the rank")
    lora_dropout: float = spec(number(0.0, 1.0), "0")
    lora_targets: tuple[str, ...] = spec(names, "`all-linear`; or `attention`, or names of modules")
    trainable_extra: tuple[str, ...] = spec(
        choices(rules.TRAINABLE_EXTRAS), "trained beside adapters: {options}", ()
    )
    freeze_trainable_layers: int | None = spec(
        whole(1, 10_000, "layers"),
        "last layers that train with `method: freeze`, 2 if not stated; under checkpointing the gradient "
        "goes on to the embeddings, as transformers has it",
    )
    # Number formats
    weights_dtype: str = spec(
        choice(
            dict.fromkeys(options.WEIGHTS, "") | {"nf4_dq": "nf4, nested"},
            options.DTYPES | options.WEIGHTS_ALIASES,
        ),
        "{options}; `nf4_dq` for QLoRA, `gptq4` for GPTQ-LoRA, else `bf16`",
        label="Weights",
    )
    autocast: str = spec(
        choice(("none", "bf16", "fp16"), {**options.DTYPES, "no": "none", "false": "none"}),
        "mixed precision over the weights' format: {options}",
        "none",
        "Autocast",
    )
    adapter_dtype: str = spec(choice(("bf16", "fp16", "fp32"), options.DTYPES), "`bf16`; or `fp16`, `fp32`")
    upcast_unquantized: bool = spec(
        flag, "norms, embeddings and head of a quantised model in fp32 (PEFT's preparation)", False
    )
    fp8: bool = spec(
        flag,
        "matrix products of the layers in fp8, as TransformerEngine and torchao's float8 have it; weights, "
        "activations and attention stay as they are, and a GPU without fp8 computes in 16 bit",
        False,
    )
    fp8_recipe: str = spec(
        choice(rules.NARROW_RECIPES, rules.RECIPE_ALIASES),
        "how products under `fp8` are scaled: {options}; 4-bit formats too. Unasked `delayed` by "
        "Megatron's layers, else `tensorwise`; no effect without `fp8`",
        label="fp8 recipe",
    )
    fp8_products: str = spec(
        choice(("all", "linears", "experts")),
        "which products of the layers `fp8` means: {options} (routed experts alone)",
        "all",
    )
    fp8_all_gather: bool = spec(
        flag, "FSDP casts its shards to fp8 and gathers those (torchao's option); needs `fp8`", False
    )
    quantize_experts: bool = spec(
        flag,
        "whether experts are really quantised: true before transformers 5, whose fused experts the "
        "quantiser skips",
    )
    # Implementation
    optimizer: str = spec(
        choice(options.OPTIMIZERS, options.OPTIMIZER_ALIASES), "{options}", "adamw", "Optimizer"
    )
    optimizer_rank: int | None = spec(
        whole(1, 65_536), "to which GaLore and APOLLO project the gradients of layers; 128"
    )
    optimizer_implementation: str = spec(
        choice(("fused", "foreach", "loop", "in_backward")),
        "`fused` from transformers 4.56 on, `foreach` before; or `loop`, `in_backward` (a layer is updated "
        "as soon as its gradients are there)",
    )
    gradient_dtype: str | None = spec(
        choice(("fp32", "bf16", "fp16"), options.DTYPES),
        "of the gradients that Megatron's optimizer adds up and reduces; none: fp32 of bf16 weights",
    )
    moments_dtype: str = spec(
        choice(("fp32", "bf16", "fp16", "fp8"), options.DTYPES),
        "of Adam's moments where Megatron's or DeepSpeed's optimizer keeps copies of 16-bit weights "
        "(Megatron's precision-aware optimizer)",
        "fp32",
    )
    master_dtype: str = spec(
        choice(("fp32", "fp16", "remainder"), options.DTYPES),
        "of those copies: `remainder`, the 16 bits that bf16 weights lack, as TransformerEngine keeps beside "
        "narrow moments",
    )
    activation_checkpointing: str = spec(
        choice(("none", "full", "selective", "offload"), {"true": "full", "false": "none"}),
        "{options}",
        "none",
        "Checkpointing",
    )
    recompute_modules: tuple[str, ...] = spec(
        choices(rules.MODULES),
        "modules of a layer that `activation_checkpointing: selective` runs again, by Megatron-Core's names: "
        "{options}; `core_attn` under Megatron. Where none is named, all but products and attention",
    )
    recompute_num_layers: int | None = spec(
        whole(1, 10_000, "layers"),
        "with `activation_checkpointing: full`, the n of `recompute_method`; none: every layer by itself",
    )
    recompute_method: str = spec(
        choice(("uniform", "block", "every")),
        "which layers: `uniform`, one input is kept for n of them; `block`, the first n of each chunk of a "
        "stage; `every`, each n-th one",
        "uniform",
    )
    checkpointing_reentrant: bool = spec(flag, "whether checkpointing is the reentrant kind", True)
    synchronous: bool = spec(
        flag,
        "whether the host waits for the GPU around every module, as instrumented code does "
        "(`torch.cuda.synchronize()`): host and device time add up",
        False,
    )
    attention: str = spec(
        choice(
            {"sdpa": "SDPA", "flash": "FlashAttention", "eager": "eager"},
            dict.fromkeys(options.FLASH, "flash"),
        ),
        "`sdpa`, `flash` (also `fa2`, `fa3`), `eager`",
        "sdpa",
        "Attention",
    )
    attention_mask: bool | None = spec(
        flag,
        "whether transformers' `sdpa` is handed a mask, as it is where a batch holds padding: PyTorch's "
        "memory-efficient kernel then runs, which skips nothing; none: where sequences are padded",
    )
    kernels: tuple[str, ...] = spec(
        choices(options.KERNELS | dict.fromkeys(rules.ATTENTION_KERNELS, "")),
        "fused kernel sets: `liger`, `unsloth`, `foak`, `megatron` (softmax of masked scores; GELU and "
        "residual with their bias). Three more say which attention kernel runs: `flash3` (FlashAttention-3 "
        "or cuDNN's, faster on Hopper and later; Megatron's layers have it), `flash2`, `triton` "
        "(FlashAttention's first generation)",
        (),
        "Fused kernels",
    )
    loss: str = spec(
        choice(("full_logits", "chunked", "fused", "compiled"), {"full": "full_logits"}),
        "`full_logits`; `fused` with Liger; or `chunked`; `compiled`: whole logits, widened in a kernel",
    )
    keeps_outputs: bool = spec(
        flag,
        "whether the training loop holds the model's outputs, its logits, until the next ones are there, as "
        "`outputs = model(...)` in a hand-written loop does; HF Trainer lets go of them before backward",
        False,
    )
    experts_implementation: str = spec(
        choice(("eager", "grouped_mm")),
        "`grouped_mm` from transformers 5 on, `eager` (one expert after the other) before",
    )
    ssm_kernels: str = spec(
        choice(("fused", "slow")), "of state space layers: `fused` or `slow` (the Python path)", "fused"
    )
    compile: bool = spec(flag, "torch.compile", False, "torch.compile")
    cuda_alloc_conf: str | None = spec(
        text,
        "`PYTORCH_CUDA_ALLOC_CONF` (`PYTORCH_ALLOC_CONF`) of the training: `expandable_segments:True`, "
        "`max_split_size_mb`, `garbage_collection_threshold`; what the framework sets where not stated",
        label="Allocator",
    )
    # Data and duration
    dataset: str | None = spec(
        text,
        "name in the catalogue, a file of lengths, a [file of texts](data.md), or "
        "`instructions-of-N-tokens`: where only the mean length N is known, the spread of published "
        "instruction sets; none: every sequence is `seq_len` long",
        label="Data set",
    )
    num_samples: int | None = spec(
        whole(1, 10**10, "samples"),
        "samples of the data set that are used, the validation set's included; none: all of them",
        label="Samples",
    )
    seq_len: int = spec(
        whole(1, MAX_SEQ_LEN, "tokens"),
        "cut-off in tokens; with no data set, the length of every sequence",
        2048,
        "Cut-off",
    )
    over_length: str = spec(
        choice(("truncate", "drop", "split")),
        "what becomes of a sample longer than `seq_len`: `truncate`, `drop`, `split` into several",
        "truncate",
    )
    packing: bool = spec(flag, "samples joined into sequences of `seq_len`", False, "Packing")
    packing_strategy: str = spec(
        choice(options.STRATEGIES, options.STRATEGY_ALIASES),
        "`best_fit_decreasing` (the longest first, each where the least room is left), `first_fit`, "
        "`wrapped` (one long text, cut into rows); what the framework does unasked: [batches](batches.md)",
    )
    padding: str = spec(
        choice(("longest", "max", "free"), {"max_length": "max", "true": "longest"}),
        "`longest` of the micro-batch with a data set, else `max`; `free`: joined without padding (with "
        "packing: samples do not attend to each other)",
    )
    pad_to_multiple_of: int = spec(whole(1, 65_536, "tokens"), "padded lengths are rounded up to it", 8)
    group_by_length: bool = spec(flag, "batches of samples of similar length (transformers' sampler)", False)
    validation_fraction: float = spec(number(0.0, 0.999), "share of samples held out of training", 0.0)
    tokenizer: str | None = spec(
        text, "folder or `tokenizer.json` that turns a [data set of texts](data.md) into tokens"
    )
    max_new_tokens: int = spec(
        whole(1, MAX_SEQ_LEN, "tokens"),
        "tokens that the model generates in `ppo`, `grpo`, `decode` and `serve`: half of `seq_len`; the rest "
        "is the prompt",
    )
    num_generations: int = spec(whole(2, 4096, "answers"), "answers per prompt that `grpo` compares", 8)
    critic_model: str | None = spec(
        text, "`ppo`'s value model, which trains beside the policy; none: one as large as `model`"
    )
    critic_method: str = spec(
        choice(("full", "lora")), "how it trains; as the policy where not stated, `full` in DeepSpeed-Chat"
    )
    critic_checkpointing: bool = spec(
        flag, "whether its layers are checkpointed; as the policy's where not stated"
    )
    critic_sharding: str = spec(
        choice(options.SHARDING, options.SHARDING_ALIASES),
        "what divides it, and the reward model: another stage of ZeRO than the policy's, `none` for stage 0; "
        "as the policy where not stated",
    )
    reward_model: str | None = spec(
        text,
        "the frozen model that judges answers; `none`: a rule does. In `ppo` as large as the value model if "
        "not stated, in `grpo` none",
    )
    reference_model: str = spec(
        text,
        "the frozen model that the policy is kept near in `dpo`, `ppo` and `grpo`: a name; `policy`, its "
        "adapters off; `copy` of what it was; `none`. `policy` with adapters, else `copy`",
    )
    reference_offload: bool = spec(
        flag, "whether the reference lies in host memory, and comes for every pass", False
    )
    ema: bool = spec(flag, "whether a moving average of the policy's weights is kept beside it", False)
    ppo_epochs: int = spec(
        whole(1, 1000, "passes"),
        "passes of updates over the answers of a step of `ppo` or `grpo`: 1; 4 in `ppo`, as in TRL",
    )
    num_mini_batches: int = spec(
        whole(1, 100_000, "updates"),
        "optimizer steps of each such pass: a step generates answers for all of them, micro_batch_size x "
        "gradient_accumulation_steps x num_mini_batches on every GPU",
        1,
    )
    generation_batch_size: int | None = spec(
        whole(1, 1_000_000, "answers"), "answers that a GPU generates at once; none: all of a step"
    )
    # Rollout engine
    mean_new_tokens: float | None = spec(
        number(1.0, MAX_SEQ_LEN, "tokens"),
        "mean length of the answers of `ppo`, `grpo` and `serve`, which end by chance and at "
        "`max_new_tokens` at the latest; none: all have `max_new_tokens`",
    )
    rollout_gpus: int = spec(
        whole(0, MAX_GPUS, "GPUs"),
        "GPUs that only generate, beside the `num_gpus` that train; 0: the engine shares those",
        0,
    )
    rollout_tensor_parallel: int = spec(
        whole(1, MAX_GPUS), "degree of the rollout engine; it runs on so many GPUs as often as there are", 1
    )
    rollout_dtype: str | None = spec(
        choice(("bf16", "fp16", "fp8"), options.DTYPES),
        "of the rollout engine's weights; none: as the model computes",
    )
    rollout_sleep: int = spec(
        whole(0, 2),
        "what an engine on the trainer's GPUs frees while it does not generate: 0 nothing, 1 its cache, its "
        "weights wait on the host; 2 both (vLLM's sleep levels)",
        0,
    )
    rollout_offload: str = spec(
        choice(("none", "optimizer", "all")),
        "what of the trainer waits on the host while answers are generated: {options} (states and weights)",
        "none",
    )
    off_policy_steps: int = spec(
        whole(0, 1000, "steps"),
        "by how many steps generation on GPUs of its own runs ahead of training; 0: one waits for the other",
        0,
    )
    old_log_probs: bool = spec(
        flag,
        "whether `grpo` takes the policy's own likelihoods in a pass before its updates, as it does before "
        "several",
        False,
    )
    reward_s: float = spec(
        number(0.0, 1e6, "s"), "seconds per step in which rules or a sandbox judge the answers", 0.0
    )
    fuse_lora: bool = spec(
        flag,
        "whether adapters are added to the weights before answers are generated: where an engine generates",
    )
    gather_for_generation: bool = spec(
        flag,
        "whether ZeRO-3's weights are gathered once before answers are generated, not for every token: TRL's "
        "`ds3_gather_for_generation`, DeepSpeed-Chat without `unpin_actor_parameters`",
    )
    gathered_layers: int | None = spec(
        whole(1, 10_000, "layers"),
        "gathered whole at once where `rollout_tensor_parallel` divides ZeRO-3's weights (DeepSpeed-Chat's "
        "`tp_gather_partition_size`); none: 8, or fewer where 8 do not fit",
    )
    micro_batch_size: int = spec(
        whole(1, 1_000_000, "sequences"), "sequences per GPU and forward pass", 1, "Micro-batch"
    )
    gradient_accumulation_steps: int = spec(
        whole(1, 1_000_000), "micro-batches per optimizer step", 1, "Accumulation"
    )
    epochs: float = spec(number(1e-6, 1e6), "passes over the data", 1.0, "Epochs")
    max_steps: int | None = spec(
        whole(1, 10**10, "steps"), "optimizer steps, instead of epochs", label="Steps at most"
    )
    # Images
    images_per_sample: float = spec(
        number(0.0, 10_000.0, "images"),
        "images of a sample, on average; their tokens are part of its `seq_len`, and come to the lengths of "
        "a data set: [images](images.md)",
        0.0,
        "Images per sample",
    )
    image_size: str | None = spec(
        text,
        "width x height of these images, and of the frames of videos, in pixels, as `1024x768`, before the "
        "model's processor resizes them",
        label="Image size",
    )
    videos_per_sample: float = spec(number(0.0, 1_000.0, "videos"), "videos of a sample, on average", 0.0)
    video_frames: int | None = spec(
        whole(1, 100_000, "frames"), "frames that are taken of a video", label="Frames of a video"
    )
    image_min_pixels: int | None = spec(
        whole(1, 10**9, "pixels"),
        "smaller images are enlarged (`min_pixels` of a processor that has it); as published checkpoints "
        "have it where not stated",
    )
    image_max_pixels: int | None = spec(
        whole(1, 10**9, "pixels"), "larger images are made smaller (`max_pixels`); likewise"
    )
    freeze_language_model: bool = spec(
        flag, "whether the language model behind a vision tower stays as it is (LLaVA's first stage)", False
    )
    freeze_vision_tower: bool = spec(
        flag,
        "whether a vision tower stays as it is, its weights or, with images, its adapters; as the framework "
        "has it where not stated: LLaMA-Factory and ms-swift freeze it",
    )
    freeze_projector: bool = spec(
        flag, "whether what joins the tower to the language model stays as it is; likewise"
    )


_NONE = type(None)
FIELDS: dict[str, Field] = {
    name: each._replace(name=name, is_optional=_NONE in getattr(part.__annotations__[name], "__args__", ()))
    for part in (Fields, MachineFields)
    for name, each in vars(part).items()
    if isinstance(each, Field)
}


def completions(word: str) -> Iterator[tuple[str, str]]:
    """Yield (completion, help) of an unfinished `key=value` word of the command line."""
    name, equals, value = word.partition("=")
    if not equals:
        yield from ((f"{known}=", field.help) for known, field in FIELDS.items() if known.startswith(name))
    elif name in FIELDS:
        for option in completed_values(FIELDS[name]):
            if option.startswith(value):
                yield f"{name}={option}", FIELDS[name].options.get(option, "")


def completed_values(field: Field) -> tuple[str, ...]:
    """Return the values that can be listed for a field: its choices, yes or no, or names of the catalogue."""
    if field.kind == "flag":
        return ("true", "false")
    if field.name == "gpu":
        return tuple(gpus())
    if field.name == "model":
        from finegauge.catalogue.models import models

        return tuple(alias for row in models().values() for alias in (*row.aliases, row.name))
    if field.name == "dataset":
        from finegauge.catalogue.datasets import datasets

        return tuple(datasets())
    return tuple(field.options)
