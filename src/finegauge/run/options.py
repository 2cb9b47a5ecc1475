"""The choices of fields of a run, each with its label in a form, and the aliases of other frameworks."""

METHODS = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA", "gptq_lora": "GPTQ + LoRA"}
METHOD_ALIASES = dict.fromkeys(("fft", "finetune", "full_finetune", "full_finetuning", "full_ft"), "full")
ADAPTERS = {
    **{"lora": "LoRA", "dora": "DoRA", "lora_fa": "LoRA-FA", "adalora": "AdaLoRA", "vera": "VeRA"},
    **{"ia3": "IA3", "oft": "OFT", "boft": "BOFT", "loha": "LoHa", "lokr": "LoKr", "miss": "MiSS"},
    **{"fourierft": "FourierFT", "randlora": "RandLoRA", "prompt_tuning": "prompt tuning"},
    **{"prefix_tuning": "prefix tuning", "p_tuning": "P-tuning", "trainable_tokens": "some tokens"},
    "ln_tuning": "layer norms",
}
ADAPTER_ALIASES = {  # which start, scale or learn differently, and cost what LoRA does
    **dict.fromkeys(
        ("rslora", "lora_plus", "loraplus", "lora+", "pissa", "olora", "eva", "loftq", "corda"), "lora"
    ),
    **{"bone": "miss", "prompt": "prompt_tuning", "prefix": "prefix_tuning", "ptuning": "p_tuning"},
    "lorafa": "lora_fa",
}
PHASES = {
    **{"sft": "fine-tuning (SFT)", "pretrain": "pre-training", "reward": "reward model", "dpo": "DPO"},
    **{"ppo": "PPO", "grpo": "GRPO", "evaluate": "", "prefill": "", "decode": "", "serve": ""},
}
TASKS = {
    **{"causal_lm": "causal language model", "masked_lm": "masked language model", "reranker": "reranker"},
    **{"sequence_classification": "classification of texts", "token_classification": "of tokens"},
    **{"question_answering": "spans of answers", "embedding": "embeddings"},
    "seq2seq_lm": "sequence to sequence",
}
TASK_ALIASES = {
    **dict.fromkeys(("seq_cls", "text_classification", "regression"), "sequence_classification"),
    **{"token_cls": "token_classification", "ner": "token_classification", "fill_mask": "masked_lm"},
    **{"mlm": "masked_lm", "clm": "causal_lm", "question_ans": "question_answering"},
    **{"feature_extraction": "embedding", "cross_encoder": "reranker", "seq_2_seq_lm": "seq2seq_lm"},
}
WEIGHTS = ("bf16", "fp16", "fp32", "nf4", "nf4_dq", "gptq4", "gptq8", "fp8", "int8", "nvfp4", "mxfp4")
WEIGHTS_ALIASES = {
    **{"awq": "gptq4", "awq4": "gptq4", "gptq": "gptq4", "int4": "gptq4"},  # groups of 128
    **{"4bit": "nf4_dq", "4": "nf4_dq", "8bit": "int8", "8": "int8"},  # as bitsandbytes has them
}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
OPTIMIZERS = {
    **{"adamw": "AdamW", "adamw_8bit": "AdamW, 8 bits", "paged_adamw": "AdamW, paged"},
    **{"paged_adamw_8bit": "AdamW, paged, 8 bits", "adafactor": "Adafactor", "lion": "Lion"},
    **{"lion_8bit": "Lion, 8 bits", "sgd": "SGD", "adamw_4bit": "AdamW, 4 bits", "muon": "Muon"},
    **{"adam_mini": "Adam-mini", "shampoo": "Shampoo", "soap": "SOAP", "galore_adamw": "GaLore"},
    **{"galore_adamw_8bit": "GaLore, 8 bits", "galore_adafactor": "GaLore, Adafactor"},
    **{"apollo_adamw": "APOLLO", "lomo": "LOMO", "adalomo": "AdaLOMO", "ademamix": "AdEMAMix"},
    **{"ademamix_8bit": "", "paged_ademamix": "", "paged_ademamix_8bit": "", "paged_lion": ""},
    **{"paged_lion_8bit": "", "schedule_free_adamw": "schedule-free AdamW", "schedule_free_radam": ""},
    **{"schedule_free_sgd": "", "stable_adamw": "", "rmsprop": "", "rmsprop_8bit": "", "adagrad": ""},
}
OPTIMIZER_ALIASES = {
    **dict.fromkeys(("adam", "adamw_torch", "adamw_hf", "adamw_torch_fused", "adamw_fused"), "adamw"),
    **dict.fromkeys(("adamw8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), "adamw_8bit"),
    **{"adamw_apex_fused": "adamw", "paged_adamw_32bit": "paged_adamw", "lion_32bit": "lion"},
    **{"adamw_torch_4bit": "adamw_4bit", "paged_lion_32bit": "paged_lion"},
    **{"paged_ademamix_32bit": "paged_ademamix", "rmsprop_bnb_8bit": "rmsprop_8bit"},
    **{"rmsprop_bnb": "rmsprop", "rmsprop_bnb_32bit": "rmsprop"},
    **{"galore": "galore_adamw", "apollo": "apollo_adamw"},
    **{"adamini": "adam_mini", "schedulefree": "schedule_free_adamw"},
}
FLASH = ("fa", "fa2", "fa3", "flash_attn", "flash_attention", "flash_attention_2", "flash_attention_3")
KERNELS = {"liger": "Liger", "unsloth": "Unsloth", "foak": "FOAK", "megatron": "Megatron"}
STRATEGIES = ("best_fit_decreasing", "first_fit", "wrapped")
STRATEGY_ALIASES = {"bfd": STRATEGIES[0], "best_fit": STRATEGIES[0], "ffd": "first_fit"}
SCHEDULES = ("1f1b", "gpipe", "naive", "zb_h1", "zb_v", "dualpipe", "dualpipe_v")
SCHEDULE_ALIASES = {
    **{"naive_mp": "naive", "interleaved1f1b": "1f1b", "interleavedzerobubble": "zb_h1", "zb1p": "zb_h1"},
    **{"zbvzerobubble": "zb_v", "zbv": "zb_v", "dualpipev": "dualpipe_v"},
}
SHARDING = {
    **{"none": "none (DDP)", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp": "FSDP"},
    **{"fsdp_shard_grad_op": "FSDP, weights kept", "hybrid": "hybrid FSDP"},
}
SHARDING_ALIASES = {
    **{"false": "none", "ddp": "none", "zero0": "none", "0": "none"},
    **{alias.format(stage): f"zero{stage}" for alias in ("{}", "zero_{}", "stage{}") for stage in (1, 2, 3)},
}
OFFLOAD = {"none": "", "optimizer": "", "params": "", "all": "", "nvme": "NVMe"}
ENGINES = ("hf", "vllm", "sglang", "tgi", "lightllm", "tensorrt_llm", "deepspeed")
ENGINE_ALIASES = {"transformers": "hf", "trtllm": "tensorrt_llm", "tensorrt": "tensorrt_llm"}
FP8_FORMATS = ("fp8_e4m3", "fp8_e5m2", "fp8_inc")
# What trainers call a field, for the command line; "field=value" by the word alone or `word=true`.
SPELLINGS = {
    **dict.fromkeys(("data", "dataset_name", "train_dataset"), "dataset"),
    **dict.fromkeys(("batch", "batch_size", "batchsize", "bs"), "micro_batch_size"),
    **{"per_device_train_batch_size": "micro_batch_size", "use_dora": "adapter=dora", "zero": "sharding"},
    **dict.fromkeys(("max_seq_length", "max_seq_len", "max_length", "cutoff_len", "sequence_len"), "seq_len"),
    **dict.fromkeys(("seq", "seqlen", "sequence_length", "context", "context_length", "ctx"), "seq_len"),
    **dict.fromkeys(("grad_accum", "gradient_accumulation", "accumulation"), "gradient_accumulation_steps"),
    **dict.fromkeys(("gradient_checkpointing", "checkpointing"), "activation_checkpointing"),
    **dict.fromkeys(("r", "rank", "lora_r"), "lora_rank"),
    **dict.fromkeys(("attn", "attn_implementation"), "attention"),
    **dict.fromkeys(("dtype", "torch_dtype", "precision"), "weights_dtype"),
    **{"gpus": "num_gpus", "nproc_per_node": "num_gpus", "num_train_epochs": "epochs", "optim": "optimizer"},
    **{"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel", "ep": "expert_parallel"},
    **{"target_modules": "lora_targets", "lora_target_modules": "lora_targets", "deepspeed": "sharding"},
    **{"lora": "method=lora", "qlora": "method=qlora", "full": "method=full", "load_in_4bit": "method=qlora"},
    **{f"zero{stage}": f"sharding=zero{stage}" for stage in (1, 2, 3)},
    **{"fsdp": "sharding=fsdp", "flash_attention": "attention=flash", "flash_attn": "attention=flash"},
    **dict.fromkeys(("liger", "use_liger", "use_liger_kernel", "enable_liger_kernel"), "kernels=liger"),
    **dict.fromkeys(("quantization", "quantization_bit", "quantize", "bits"), "weights_dtype"),
    **{"bf16": "weights_dtype=bf16", "fp16": "weights_dtype=fp16", "load_in_8bit": "weights_dtype=int8"},
    **dict.fromkeys(("4bit", "4_bit"), "method=qlora"),
    **dict.fromkeys(("8bit", "8_bit"), "weights_dtype=int8"),
}
_OF_MIXTRAL = {"gate": "gate", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
_OF_QWEN = {"gate": "gate", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
_LIKE_MIXTRAL = ("mixtral", "minimax", "minimax_m2")
_LIKE_QWEN = (
    *("afmoe", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe"),
    *("exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa"),
    *("hunyuan_v1_moe", "kimi_k2", "longcat_flash", "mellum", "olmoe", "qwen3_moe", "qwen3_next"),
    *("qwen3_omni_moe", "solar_open"),
)
# What the names of layers of experts in transformers 4 mean in transformers 5, by model_type.
REWRITTEN = {**dict.fromkeys(_LIKE_MIXTRAL, _OF_MIXTRAL), **dict.fromkeys(_LIKE_QWEN, _OF_QWEN)}
