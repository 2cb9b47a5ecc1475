"""The fields of a run that say on which machine and software it runs, and what serves it."""

from finegauge.run import options
from finegauge.run.field import Frozen, choice, choices, flag, label, number, spec, text, version, whole

MAX_SEQ_LEN = 16_777_216
MAX_GPUS = 1_000_000


class MachineFields(Frozen):
    """The fields of machine and software; the others are of `fields.Fields`."""

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
        whole(1, MAX_GPUS),
        "degree within experts (Megatron's); none: `tensor_parallel`, 1 where there are too few GPUs",
    )
    expert_parallel_overlap: bool = spec(
        flag,
        "tokens travel to experts and back behind another micro-batch's computation (Megatron's "
        "overlap_moe_expert_parallel_comm; DualPipe's schedules have it)",
        False,
    )
    sharding: str = spec(choice(options.SHARDING, options.SHARDING_ALIASES), "{options}", "none", "Sharding")
    reduce_bucket_size: int = spec(
        whole(1, 10**12, "values", words={"auto": ""}),
        "gradients that DeepSpeed reduces in one message, and has memory for; `auto`: hidden size squared, "
        "as transformers fills its file in",
        500_000_000,
    )
    zero_hpz_partition_size: int = spec(
        whole(1, MAX_GPUS, "GPUs"),
        "GPUs of a node that share a second copy of the weights in each step, so that later passes gather "
        "within them (ZeRO++'s hpZ); no effect without `zero3`",
        1,
    )
    zero_quantized_weights: bool = spec(flag, "`zero3` gathers weights in 8 bits (ZeRO++'s qwZ)", False)
    zero_quantized_gradients: bool = spec(
        flag, "`zero3` sends gradients in 4 bits, within nodes and then between them (ZeRO++'s qgZ)", False
    )
    sync_each_batch: bool = spec(
        flag,
        "whether FSDP reduces gradients after every micro-batch, not after the last alone (accelerate's "
        "`sync_each_batch`): more messages, but gradients never stay whole; as the framework does",
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
    max_model_len: int | None = spec(
        whole(1, MAX_SEQ_LEN, "tokens"),
        "tokens of the longest request that a server takes, for which its engine must have room to start; "
        "`seq_len` where not stated",
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
