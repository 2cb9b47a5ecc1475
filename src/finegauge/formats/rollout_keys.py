"""How answers are generated for reinforcement learning, by the keys of TRL's trainers and of who drives them.

What no key says but TRL does (read from 1.16): answers of 512 tokens (256 before 1.10), eight to a prompt
(RLOO: two), by transformers; with `use_vllm` by vLLM, on the same GPUs from 1.0 on (`vllm_mode: colocate`;
before, on others), of whose memory it takes 0.3, as many answers at once as its ranks ask for, prompts in
chunks of 4,096 tokens, sleeping at level 2 where `vllm_enable_sleep_mode` says so; the policy's own
likelihoods are then taken in a pass of their own, to correct for the difference of both. PPO: answers of 53
tokens, 64 at a time; four passes over them; the value model begins as the reward model, of
`reward_model_path`, and the policy as `sft_model_path` (examples/scripts/ppo/ppo.py).
ms-swift: 0.9, levels 0 to 2, and `offload_model` and `offload_optimizer` while it generates.
"""

from finegauge.errors import shown
from finegauge.formats import model_names
from finegauge.formats.key_table import Reading, Row
from finegauge.formats.sheet import known_model
from finegauge.run.field import number, whole
from finegauge.run.run import Run

_LENGTHS = ("max_prompt_length", "max_completion_length", "max_new_tokens", "num_generations", "beta")
_UPDATES = ("num_iterations", "steps_per_generation", "generation_batch_size")
_ENGINE = (
    *("use_vllm", "vllm_mode", "vllm_server_host", "vllm_server_base_url", "vllm_gpu_memory_utilization"),
    *("vllm_tensor_parallel_size", "vllm_enable_sleep_mode", "sleep_level", "vllm_max_num_seqs"),
    *("vllm_importance_sampling_correction", "vllm_quantization", "offload_model", "offload_optimizer"),
    *("async_generate", "vllm_device", "vllm_max_model_length", "vllm_max_model_len"),
)
_NOT_MODELLED = (
    *("vllm_pipeline_parallel_size", "vllm_data_parallel_size", "vllm_enforce_eager", "vllm_enable_lora"),
    *("vllm_speculative_config", "vllm_enable_expert_parallel", "use_transformers_paged", "dynamic_sample"),
    *("multi_turn_scheduler", "vllm_engine_kwargs"),
)
_SERVER = ("tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization", "max_num_seqs")
_GATHERS = "ds3_gather_for_generation"
COLOCATED, SERVER = "colocate", "server"


def read_preference(reading: Reading, method: str, *keys: str) -> None:
    """Read what of a preference method is unlike DPO: ORPO, CPO and SimPO have no reference model.

    IPO, NCA and other losses of DPO's trainer pass as often as DPO itself.
    """
    if method in ("orpo", "cpo", "simpo"):
        reading.set("reference_model", "none", *keys)
    elif method == "kto":
        reading.warn(
            "kto is taken as dpo, whose passes it shares; it trains on one sequence for every sample, and "
            "scores another one for its KL term."
        )
    if reading.flag("precompute_ref_log_probs") and method not in ("orpo", "cpo", "simpo"):
        reading.set("reference_model", "none", "precompute_ref_log_probs")
        reading.warn("precompute_ref_log_probs: the reference's pass before the training is not counted.")


def generation_row(
    section: str = "", prompt: int = 512, answer: int = 256, beta: float = 0.0, share: float = 0.3,
    server: str = "",
) -> Row:  # fmt: skip
    """Return the row of what GRPO and its kin generate, and of the engine that does.

    Args:
        section: Of the keys, with its dot.
        prompt: Tokens that a prompt is taken to have where nothing says; 0 for the cut-off read before.
        answer: Tokens of an answer, as the framework has them unasked.
        beta: The weight of the reference model, likewise.
        share: Of the GPU's memory that vLLM takes beside the trainer, likewise.
        server: Section of the file, with its dot, that says how a server of its own is started.
    """
    names = [f"{section}{name}" for name in (*_LENGTHS, *_UPDATES, *_ENGINE)]

    def read(reading: Reading) -> None:
        if reading.fields["phase"] == "grpo":
            newer = reading.format.family == "transformers" and not reading.before(1, 10)
            _read_lengths(reading, section, prompt, 512 if newer else answer, beta)
            if reading.flag(f"{section}use_vllm"):
                _read_engine(reading, section, share, server)
            reading.not_modelled(*(f"{section}{name}" for name in _NOT_MODELLED))
            if reading.stated(_GATHERS):
                reading.set("gather_for_generation", reading.flag(_GATHERS), _GATHERS)

    own = [f"{server}{name}" for name in _SERVER] if server else []
    return Row(
        " ".join([*names, *own, _GATHERS]), read, lambda run: _written(run, section, by_level=not prompt)
    )


def ppo_row(judge: str = "reward_model_path", unasked: int = 53, *answers: str) -> Row:
    """Return the row of what a PPO trainer generates, TRL's unless told, and of its other models.

    Args:
        judge: The key of the model that judges.
        unasked: Tokens of an answer where nothing says.
        answers: Further keys of these tokens.
    """
    policy, lengths = "sft_model_path", ("response_length", *answers)
    epochs, updates, at_once = "num_ppo_epochs", "num_mini_batches", "local_rollout_forward_batch_size"
    episodes, by_rule = "total_episodes", "reward_model_name_or_path"  # of GRPO's script, which takes rules

    def read(reading: Reading) -> None:
        if reading.fields["phase"] == "grpo":
            other_model(reading, "reward_model", by_rule)
        if reading.fields["phase"] != "ppo":
            return
        reading.take("model", policy)
        for role in ("critic_model", "reward_model"):
            other_model(reading, role, judge)
        written = reading.whole(answer := reading.which(*lengths), unasked, 10**7)
        reading.set("max_new_tokens", written, answer)
        if answers:  # the cut-off read before is of prompts
            prompt = whole(1, 10**7)("seq_len", reading.fields.get("seq_len") or 512)
            reading.set("seq_len", prompt + written, "max_length", answer)
        elif not reading.stated("max_length", "max_seq_length"):
            reading.warn("Prompts are taken as 512 tokens long; seq_len=… of both together says another.")
            reading.set("seq_len", 512 + written, answer)
        reading.take("num_samples", episodes)
        reading.take("ppo_epochs", epochs, 4)
        reading.take("num_mini_batches", updates, 1)
        reading.take("generation_batch_size", at_once, 64)

    return Row(" ".join((policy, judge, by_rule, *lengths, epochs, updates, at_once, episodes)), read)


def read_group(reading: Reading, key: str) -> None:
    """Read how many answers to a prompt are compared."""
    answers = reading.whole(key, 1, 4096)
    reading.set("num_generations", max(2, answers), key)
    if answers == 1:
        reading.warn(f"{key}=1: taken as two answers to each of half as many prompts.")


def other_model(reading: Reading, field: str, key: str) -> None:
    """Read a model beside the policy; one that is not known here counts as large as where none is named."""
    name = reading.get(key)
    if not isinstance(name, str) or not name:
        return
    path = model_names.here(name)[0]
    found = path if known_model(path) is not None else model_names.told(path)
    if not found:
        reading.warn(
            f"{key}: {shown(name)} is not known here; {field}=NAME or its folder says how large it is."
        )
    elif name not in (found, reading.get(reading.format.model_key)):
        reading.warn(f"{key}: {shown(name)} is taken as {found}, which its name states.")
    reading.set(field, found or None, key)


def _read_lengths(reading: Reading, section: str, prompt: int, answer: int, beta: float) -> None:
    tokens, prompts = f"{section}max_completion_length", f"{section}max_prompt_length"
    if not reading.stated(tokens) and reading.stated(f"{section}max_new_tokens"):  # online DPO's
        tokens = f"{section}max_new_tokens"
    written = reading.whole(tokens, answer, 10**7)
    if not reading.stated(prompts):
        prompt = prompt or whole(1, 10**7)("seq_len", reading.fields.get("seq_len") or 512)
        reading.warn(
            f"{prompts} is unstated: prompts are taken as {prompt} tokens long; seq_len=… says another."
        )
    asked = reading.whole(prompts, prompt, 10**7)
    longest = [f"{section}{name}" for name in ("vllm_max_model_length", "vllm_max_model_len")]
    most = reading.whole(reading.which(*longest), 10**8, 10**8, 2) if reading.stated(*longest) else 10**8
    written = min(written, most - 1)  # vLLM takes and makes no longer ones
    reading.set("seq_len", min(most, asked + written), tokens, prompts, *longest)
    reading.set("max_new_tokens", written, tokens)
    of_two = reading.text("trainer") in ("rloo", "online_dpo")
    reading.take("num_generations", f"{section}num_generations", 2 if of_two else 8)  # fmt: skip
    kept = number(-1e9, 1e9)("beta", reading.get(f"{section}beta", 0.05 if of_two else beta))
    if kept == 0:
        reading.set("reference_model", "none", f"{section}beta")
    _read_updates(reading, section)


def _read_updates(reading: Reading, section: str) -> None:
    """Read how often a rollout is learnt from, and in how many optimizer steps each time."""
    iterations, steps, batch = (f"{section}{name}" for name in _UPDATES)
    reading.take("ppo_epochs", iterations, 1)
    accumulation = whole(1, 10**6)("accumulation", reading.fields.get("gradient_accumulation_steps", 1))
    micro = whole(1, 10**6)("micro_batch_size", reading.fields.get("micro_batch_size", 1))
    if reading.stated(steps):
        micro_batches = reading.whole(steps, most=10**9)
        if reading.format.name == "Megatron-LM":  # ms-swift counts its optimizer steps there
            micro_batches *= accumulation
    elif reading.stated(batch):
        ranks = reading.data_ranks(reading.launched_gpus) or 1
        micro_batches = max(1, reading.whole(batch, most=10**9) // (micro * ranks))
    else:
        return
    if micro_batches % accumulation:
        reading.warn(
            f"{reading.which(steps, batch)} is no multiple of a step's micro-batches: a rollout is taken as "
            f"{max(1, round(micro_batches / accumulation))} steps."
        )
    reading.set("num_mini_batches", max(1, round(micro_batches / accumulation)), steps, batch)


def _read_engine(reading: Reading, section: str, share: float, server: str) -> None:
    reading.set("inference_engine", "vllm", f"{section}use_vllm")
    served = reading.stated(f"{section}vllm_server_host", f"{section}vllm_server_base_url")
    older = reading.format.family == "transformers" and reading.before(1, 0)
    older |= reading.stated(f"{section}vllm_device")  # of TRL before 0.16: a GPU that does not train
    mode = reading.text(f"{section}vllm_mode", SERVER if served or older else COLOCATED)
    corrected = f"{section}vllm_importance_sampling_correction"
    reading.set("old_log_probs", reading.flag(corrected, default=True), corrected)
    if reading.text(f"{section}vllm_quantization") == "fp8":
        reading.set("rollout_dtype", "fp8", f"{section}vllm_quantization")
    elif reading.stated(f"{section}vllm_quantization"):
        reading.not_modelled(f"{section}vllm_quantization")
    if mode == SERVER:
        _read_server(reading, section, server)
        return
    if mode != COLOCATED:
        reading.warn(f"{section}vllm_mode={shown(mode)} is unknown and taken as {COLOCATED}.")
    reading.take("gpu_memory_utilization", f"{section}vllm_gpu_memory_utilization", share)
    reading.take("rollout_tensor_parallel", f"{section}vllm_tensor_parallel_size", 1)
    at_once = int(reading.fields["rollout_tensor_parallel"])  # no more answers than its ranks ask for
    for name in ("micro_batch_size", "gradient_accumulation_steps", "num_mini_batches"):
        at_once *= whole(1, 10**6)(name, reading.fields.get(name, 1))
    reading.take("max_num_seqs", f"{section}vllm_max_num_seqs", at_once)
    level, sleeps = f"{section}sleep_level", f"{section}vllm_enable_sleep_mode"
    asleep = reading.get(level, 2 if reading.flag(sleeps) else 0)
    reading.set("rollout_sleep", asleep, level, sleeps)
    reading.set("max_num_batched_tokens", 4096)
    gone = [name for name in ("offload_model", "offload_optimizer") if reading.flag(f"{section}{name}")]
    if gone:
        reading.set(
            "rollout_offload", "all" if "offload_model" in gone else "optimizer",
            *(f"{section}{name}" for name in gone),
        )  # fmt: skip


def _read_server(reading: Reading, section: str, server: str) -> None:
    """Read an engine on GPUs of its own, which a file of the trainer tells little of."""
    degree, copies = 1, 1
    if reading.stated(f"{section}vllm_device"):  # the trainer itself started it
        reading.take("gpu_memory_utilization", f"{section}vllm_gpu_memory_utilization")
    if server:
        degree, copies = (reading.whole(f"{server}{name}", 1, 10**4) for name in _SERVER[:2])
        for name in _SERVER[2:]:
            reading.take(name, f"{server}{name}")
    reading.set("rollout_tensor_parallel", degree, f"{server}{_SERVER[0]}")
    reading.set("rollout_gpus", degree * copies, f"{section}vllm_mode", f"{server}{_SERVER[0]}")
    if reading.flag(f"{section}async_generate"):
        reading.set("off_policy_steps", 1, f"{section}async_generate")
    told = reading.replaces("rollout_gpus") or "rollout_gpus" in reading.block
    if not told and not (server and reading.stated(*(f"{server}{name}" for name in _SERVER[:2]))):
        reading.warn(
            "vLLM runs on GPUs of its own, whose number the file does not tell: taken as 1; rollout_gpus=N "
            "and rollout_tensor_parallel=N say another."
        )


def _written(run: Run, section: str, *, by_level: bool) -> dict[str, object]:
    """Return the keys for a run that generates; nothing for others.

    ms-swift sleeps `by_level`, and cuts prompts by the cut-off of every phase.
    """
    if run.phase != "grpo":
        return {}
    keys: dict[str, object] = {
        "max_length" if by_level else "max_prompt_length": run.seq_len - run.max_new_tokens,
        "max_completion_length": run.max_new_tokens,
        "num_generations": run.num_generations,
        "steps_per_generation": None
        if run.num_mini_batches == 1
        else run.num_mini_batches * run.gradient_accumulation_steps,
        "num_iterations": None if run.ppo_epochs == 1 else run.ppo_epochs,
    }
    if run.inference_engine == "vllm":
        shared = not run.rollout_gpus
        keys |= {
            "use_vllm": True,
            "vllm_mode": COLOCATED if shared else SERVER,
            "vllm_gpu_memory_utilization": run.gpu_memory_utilization if shared else None,
            "vllm_tensor_parallel_size": run.rollout_tensor_parallel if shared else None,
            "sleep_level" if by_level else "vllm_enable_sleep_mode": (
                (run.rollout_sleep if by_level else True) if shared and run.rollout_sleep else None
            ),
            "vllm_importance_sampling_correction": None if run.old_log_probs else False,
        }
    return {f"{section}{name}": value for name, value in keys.items()}
