"""The fields of a run: what each accepts, its default and its meaning, once.

Overrides, docs/run-file.md, the JSON schema, the page's form and completion follow from it.
"""

from finegauge.run import options, rules
from finegauge.run.field import (
    Field,
    Frozen,
    choice,
    choices,
    flag,
    label,
    names,
    number,
    spec,
    text,
    version,
    whole,
)

MAX_SEQ_LEN = 16_777_216
MAX_GPUS = 1_000_000


class Fields(Frozen):
    """Every field of a run; a value is None until the run is settled."""

    # Model and method
    model: str = spec(
        text, "catalogue name, Hugging Face id, `config.json`, or a folder that holds one", label="Model"
    )
    method: str = spec(choice({**options.METHODS, "freeze": "last layers"}), "{options}", label="Method")
    phase: str = spec(
        choice(options.PHASES, {"pt": "pretrain", "rm": "reward", "eval": "evaluate"}),
        "{options}; see [phases](phases.md)",
        "sft",
        "Phase",
    )
    num_experts_per_tok: int | None = spec(
        whole(1, 100_000, words={"all": ""}),
        "active experts per token; none: as the model says; `all`: dense fine-tuning",
    )
    lora_rank: int = spec(whole(1, 65_536), "of the adapters; 16", label="LoRA rank")
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
        "residual with their bias). Two more say which attention kernel runs: `flash3` (FlashAttention-3 or "
        "cuDNN's, faster on Hopper and later; Megatron's layers have it), `triton` (FlashAttention's first "
        "generation)",
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
    reward_model: str | None = spec(
        text,
        "the frozen model that judges answers; none: in `ppo` as large as the value model, in `grpo` none (a "
        "rule judges)",
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
    # Machine
    gpu: str | None = spec(
        text,
        "name of `finegauge gpus`, your own YAML file, a device profile (`.json`), or `here`",
        label="GPU",
    )
    num_gpus: int = spec(
        whole(1, MAX_GPUS), "of all nodes together: the product of the degrees", label="GPUs, all nodes"
    )
    num_nodes: int = spec(whole(1, MAX_GPUS), "machines", 1, "Nodes")
    node_network_gbit_per_s: float | None = spec(
        number(0.1, 1e6, "Gbit/s"),
        "all network cards of a node together, one direction; what is usual for the GPU (or its provider) "
        "where not stated",
    )
    nvlink: int | None = spec(
        whole(1, 100_000, "GPUs"),
        "GPUs that NVLink (or the like) joins: 1 none, 2 a bridge, 8 a board, 72 an NVL72 rack; what is "
        "usual for the GPU where not stated",
    )
    p2p: bool | None = spec(
        flag,
        "whether GPUs write to each other over PCIe, without the memory of the host; as their driver has it "
        "where not stated (not on GeForce cards)",
    )
    pcie: str | None = spec(
        choice([f"{generation}.0 x{lanes}" for generation in "3456" for lanes in (4, 8, 16)]),
        "generation and lanes between a GPU and its host; as the GPU has them where not stated",
    )
    gpus_per_pcie_switch: int | None = spec(
        whole(1, 16, "GPUs"), "GPUs that share one link to the processor; what is usual where not stated"
    )
    host_cores: int | None = spec(
        whole(1, 10_000, "cores"), "CPU cores of a node; what is usual for the GPU where not stated"
    )
    host_memory_gb_per_s: float | None = spec(
        number(1.0, 1e5, "GB/s"),
        "bandwidth of a node's memory, all sockets; what is usual for the GPU where not stated",
    )
    host_threads: int | None = spec(
        whole(1, 10_000),
        "threads of a rank on the CPU (`OMP_NUM_THREADS`); 1 where a node has several ranks, as torchrun "
        "sets it, else all cores",
    )
    nvme_gb_per_s: float | None = spec(
        number(0.1, 1e4, "GB/s"),
        "of a node's drives together (`cpu_offload=nvme`); 1.6 per GPU where not stated",
    )
    power_limit_w: float | None = spec(
        number(1.0, 1e5, "W"),
        "watts that a board may draw (`nvidia-smi -pl`); its own limit where not stated",
    )
    free_memory_bytes: float | None = spec(
        number(1e6, 1e15, "bytes"),
        "of each GPU that the run may use, where other programs hold some of it or it is a slice (MIG); all "
        "of it where not stated; `--gpu this` counts it",
    )
    data_parallel_replicate: int = spec(
        whole(1, MAX_GPUS), "what the other degrees leave of `num_gpus`, when nothing is sharded"
    )
    data_parallel_shard: int = spec(
        whole(1, MAX_GPUS), "what the other degrees leave of `num_gpus`, when something is sharded"
    )
    tensor_parallel: int = spec(whole(1, MAX_GPUS), "degree; must divide the heads", 1)
    pipeline_parallel: int = spec(whole(1, MAX_GPUS), "degree", 1)
    pipeline_schedule: str = spec(
        choice(options.SCHEDULES, options.SCHEDULE_ALIASES),
        "{options}: `naive` spreads layers over GPUs, one working at a time; `zb_h1` and `zb_v` are "
        "zero-bubble schedules, `dualpipe` and `dualpipe_v` DeepSeek's",
        "1f1b",
    )
    virtual_pipeline_stages: int = spec(
        whole(1, 1000),
        "chunks of layers that each stage holds, passed in turn (interleaved 1F1B); no effect without "
        "`pipeline_parallel`",
        1,
    )
    counted_as_layers: tuple[str, ...] = spec(
        choices(("embedding", "loss")),
        "what counts as a layer where layers are divided over stages: {options} (Megatron's "
        "account_for_..._in_pipeline_split; torchtitan counts both)",
    )
    first_stage_layers: int | None = spec(
        whole(1, 10_000, "layers"), "of the first stage, where others share the rest; none: divided evenly"
    )
    last_stage_layers: int | None = spec(whole(1, 10_000, "layers"), "of the last stage, likewise")
    sequence_parallel: bool = spec(
        flag,
        "ranks of `tensor_parallel` divide norms and residual streams by tokens (Megatron's); no effect "
        "without it",
        False,
    )
    tensor_parallel_overlap: bool = spec(
        flag,
        "exchanges of tensor parallelism run behind products (TransformerEngine's userbuffers, torchtitan's "
        "async TP)",
        False,
    )
    context_parallel: int = spec(whole(1, MAX_GPUS), "degree", 1)
    context_parallel_balance: bool = spec(
        flag,
        "each rank of `context_parallel` has a part of a sequence's head and one of its tail, so that all "
        "compute as many scores; else the last computes the most",
        True,
    )
    expert_parallel: int = spec(whole(1, MAX_GPUS), "degree within the others; must divide the experts", 1)
    expert_tensor_parallel: int | None = spec(
        whole(1, MAX_GPUS), "degree within experts (Megatron's); none: `tensor_parallel`"
    )
    expert_parallel_overlap: bool = spec(
        flag,
        "tokens travel to experts and back behind another micro-batch's computation (Megatron's "
        "overlap_moe_expert_parallel_comm; DualPipe's schedules have it)",
        False,
    )
    sharding: str = spec(
        choice(options.SHARDING, {"false": "none", "ddp": "none", "zero0": "none"}),
        "{options}",
        "none",
        "Sharding",
    )
    cpu_offload: str = spec(
        choice(options.OFFLOAD, {"false": "none", "true": "all"}),
        "`none`, `optimizer`, `params`, `all` (both), `nvme` (both on local drives, with `zero3`)",
        "none",
        "Offload to host",
    )
    offload_pinned: bool = spec(
        flag,
        "whether what is offloaded lies in page-locked memory (DeepSpeed's `pin_memory`), whose copies are "
        "quick and run beside the GPU; as the sharder has it where not stated: DeepSpeed not, FSDP yes",
    )
    provider: str | None = spec(text, "whose prices", label="Provider")
    region: str | None = spec(text, "whose prices and electricity")
    pue: float | None = spec(
        number(1.0, 4.0), "what the site draws over what its machines draw; none: its provider's, or usual"
    )
    startup_s: float = spec(
        number(0.0, 1e7, "s"),
        "seconds before the first step: process start, loading, tokenising (an assumption)",
        180.0,
    )
    saves_per_epoch: float = spec(number(0.0, 1e6), "checkpoints written", 1.0)
    eval_samples: int = spec(whole(0, 10**10), "samples of one evaluation", 0)
    eval_batch_size: int | None = spec(
        whole(1, 1_000_000, "sequences"),
        "sequences per GPU of an evaluation; 8, as transformers' trainer has it",
    )
    eval_logits: bool = spec(
        flag,
        "whether an evaluation keeps the logits of every sample, as metrics computed of them need",
        False,
    )
    eval_accumulation_steps: int | None = spec(
        whole(1, 10**9, "batches"), "batches after which kept logits go to the host; none: at the end"
    )
    loading: str = spec(
        choice(("host", "device", "rank0", "sharded")),
        "how weights come: `host` (every process reads them all, then moves them), `device` (one tensor "
        "after the other, as quantisers and a `device_map` have it), `rank0` (the first process reads and "
        "sends: FSDP's `cpu_ram_efficient_loading`, ZeRO-3), `sharded` (every process its part)",
    )
    save_state: str = spec(
        choice(("full", "sharded")), "a checkpoint: `full`, gathered by the first process, or `sharded`"
    )
    save_optimizer: bool = spec(flag, "whether a checkpoint holds the optimizer's states", True)
    saves_kept: int | None = spec(
        whole(1, 10**6, "checkpoints"), "checkpoints kept (`save_total_limit`); all"
    )
    merge_adapters: bool = spec(
        flag, "whether adapters are merged into the model's weights at the end", False
    )
    host_memory_gib: float | None = spec(
        number(0.1, 1e6, "GiB"), "host memory of a node; what instances of the catalogue have"
    )
    disk_gib: float | None = spec(number(0.1, 1e9, "GiB"), "free disk for the model and its checkpoints")
    # Serving
    inference_engine: str = spec(
        choice(options.ENGINES, options.ENGINE_ALIASES),
        "what generates: {options}; the `framework` where it is one, else `hf` (transformers' `generate`)",
        label="Inference engine",
    )
    gpu_memory_utilization: float | None = spec(
        number(0.01, 1.0),
        "share of a GPU's memory that the engine may take, for weights, activations and its cache together; "
        "the engine's own where not stated, no effect with `hf`",
    )
    max_num_seqs: int | None = spec(
        whole(1, 1_000_000, "sequences"),
        "sequences that the engine runs at once; others wait. The engine's own where not stated",
    )
    max_num_batched_tokens: int | None = spec(
        whole(1, 10_000_000, "tokens"),
        "tokens of prompts and answers that the engine computes in one step: longer prompts come in chunks. "
        "The engine's own where not stated",
    )
    arrivals: str = spec(
        choice(("users", "poisson", "burst")),
        "how requests come in `serve`: {options}: `micro_batch_size` users who each wait for their answer, "
        "`arrivals_per_s` by chance, or `micro_batch_size` at once",
    )
    arrivals_per_s: float | None = spec(
        number(1e-6, 1e6, "requests"), "requests that arrive in a second, by chance (a Poisson process)"
    )
    prefix_cached_fraction: float = spec(
        number(0.0, 0.99),
        "share of the prompts' tokens that the engine has read before, for another request (prefix caching)",
        0.0,
    )
    speculative_tokens: int = spec(
        whole(0, 64, "tokens"),
        "drafts that each step checks behind a sequence's next token (speculative decoding): each costs a "
        "layer and the head, as EAGLE's and MTP's do",
        0,
    )
    speculative_accepted_fraction: float = spec(
        number(0.0, 1.0), "the chance that a draft is right if those before it were", 0.7
    )
    truncated_sampling: bool = spec(
        flag,
        "whether tokens are chosen by top-k or top-p, for which all words are sorted; as the model's own "
        "generation_config.json asks where not stated",
    )
    kv_cache_dtype: str = spec(
        choice(
            ("auto", "bf16", "fp16", "fp8"), {**options.DTYPES, **dict.fromkeys(options.FP8_FORMATS, "fp8")}
        ),
        "of cached keys and values: {options}; `auto`: as the model computes",
        "auto",
    )
    # Software
    framework: str = spec(label, "who runs it: what it does unasked follows", "")
    framework_version: str = spec(label, "its version", "")
    transformers_version: str = spec(
        version, "decides what is derived above; quote it, for YAML reads 4.40 as 4.4", "5.23"
    )
    bitsandbytes_version: str = spec(version, "decides how the quantiser stores and dequantises", "0.50")


FIELDS: dict[str, Field] = {
    name: each._replace(name=name, is_optional="None" in str(Fields.__annotations__[name]))
    for name, each in vars(Fields).items()
    if isinstance(each, Field)
}
