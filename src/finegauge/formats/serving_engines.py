"""Launch lines of servers: `vllm serve`, `sglang.launch_server`, `trtllm-serve`, TGI's, LightLLM's.

Options are those of vLLM 0.11 (vllm/engine/arg_utils.py), SGLang 0.5 (server arguments), TensorRT-LLM 1
(trtllm-serve), text-generation-launcher 3 and LightLLM's api_server (all read 2026-11-23). A line says how
the engine runs and nothing of what it is asked: a load of users is assumed, and said. vLLM does not start
without room for one request as long as the model, or the line, lets it be.
"""

import re
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats.key_table import Format, Reading, Row, fixed
from finegauge.formats.model_names import SERVED, copied, said
from finegauge.formats.sheet import known_model
from finegauge.records import NamedTuple
from finegauge.run.field import whole
from finegauge.run.rules import num_experts

USERS, TOKENS = 32, 2048  # of a replica, and of prompt and answer together, where nobody says
GPUS_OF_A_NODE = 8
_DTYPES = ("half", "float16", "bfloat16", "float", "float32")
_QUANTIZED: Mapping[str, str | None] = {
    **dict.fromkeys(("fp8", "modelopt", "fbgemm_fp8", "fp8_e4m3", "w8a8_fp8", "ptpc_fp8"), "fp8"),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "marlin", "moe_wna16", "eetq4"), "gptq4"),
    **dict.fromkeys(("bitsandbytes", "bitsandbytes-nf4", "bnb_4bit"), "nf4"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4", "petit_nvfp4"), "nvfp4"),
    **dict.fromkeys(("w8a8_int8", "eetq", "experts_int8"), "int8"),
    **dict.fromkeys(("mxfp4",), "mxfp4"),
    **dict.fromkeys(("none", "null", "compressed-tensors", "auto", "auto-round"), None),
}


def _read_model(reading: Reading, *names: str) -> None:
    """Read the model, whose name may be that of a quantised copy, and the format of its weights."""
    named = reading.first(names)
    reading.set("model", named, *names)
    asked = str(reading.need_model())
    asked_format = reading.text("quantization" if reading.stated("quantization") else "quantize", "none")
    if asked_format not in _QUANTIZED:
        raise FieldError(
            f"quantization={shown(asked_format)} is not modelled; state weights_dtype, as weights_dtype=fp8."
        )
    stated = _QUANTIZED[asked_format]
    dtype = reading.text("dtype", "auto")
    copy = copied(asked)
    if warning := said(copy, asked):
        reading.set("model", copy.base if copy else None, *names)
        reading.warn(warning)
    named_as = copy.weights if copy and copy.weights in SERVED else None
    low = stated or named_as or (dtype if dtype in _DTYPES else None)
    reading.set("weights_dtype", low, "quantization", "quantize", "dtype")


def _number(reading: Reading, *names: str) -> int:
    """Return the number of the first of `names` that is stated, "8k" read as engines do; else 1."""
    name = reading.which(*names)
    value = str(reading.get(name, 1))
    if short := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", value):
        value = str(int(float(short[1]) * {"k": 1e3, "K": 2**10, "m": 1e6, "M": 2**20}[short[2]]))
    return int(whole(-1, 10**8)(name, value))


def _text_config(reading: Reading) -> Mapping[str, Any]:
    """Return the configuration of the model's decoder; {} of a model that nobody knows."""
    known = known_model(str(reading.fields["model"]))
    config = known.config if known else {}
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


class _Words(NamedTuple):
    """What one engine calls its degrees and limits; the first of several names is the usual one."""

    model: str
    tensor: str
    room: str  # of prompt and answer together
    sequences: str
    batched: str
    share: str
    pipeline: str = ""
    data: str = ""
    expert: str = ""
    cache: str = "kv_cache_dtype"
    drafts: str = ""
    starts_with_room: bool = False  # for its longest request, or not at all

    @property
    def keys(self) -> str:
        """Return every name."""
        of_any = "quantization quantize dtype nnodes enable_dp_attention"
        return " ".join(filter(None, (*self[:-1], of_any)))

    def read(self, reading: Reading) -> None:
        """Read a server's line."""
        _read_model(reading, *self.model.split())
        self._read_degrees(reading)
        cache = reading.text(self.cache)
        reading.set("kv_cache_dtype", "fp8" if cache.startswith("fp8") else cache or None, self.cache)
        for field, name in (
            ("gpu_memory_utilization", self.share),
            ("max_num_seqs", self.sequences),
            ("max_num_batched_tokens", self.batched),
        ):
            reading.take(field, name)
        drafts = self.drafts.split()
        if drafts and reading.stated(*drafts):
            root = "draft_tokens" in reading.which(*drafts)  # SGLang's count the token itself
            reading.set("speculative_tokens", max(1, _number(reading, *drafts) - root), *drafts)
        self._read_load(reading)

    def _read_load(self, reading: Reading) -> None:
        """Read how long requests may be, and assume how many there are."""
        longest = _number(reading, self.room) if reading.stated(self.room) else -1
        reading.set("seq_len", min(TOKENS, longest) if longest > 1 else TOKENS, self.room)
        if self.starts_with_room:
            most = longest if longest > 1 else _text_config(reading).get("max_position_embeddings")
            most = most if isinstance(most, int) and most > 0 else None
            reading.set("max_model_len", most, self.room)
            if most and longest <= 1:
                reading.warn(
                    f"max_model_len is the model's, {most:,} tokens: the engine needs room for one such."
                )
        reading.set("micro_batch_size", USERS)
        if not any(map(reading.replaces, ("micro_batch_size", "arrivals_per_s", "seq_len"))):
            reading.warn(
                f"The line does not say what the server is asked: taken as {USERS} users of each replica, "
                f"each with {reading.fields['seq_len']:,} tokens, half of them the answer's; state "
                "micro_batch_size or arrivals_per_s, seq_len and max_new_tokens."
            )

    def _read_degrees(self, reading: Reading) -> None:
        """Read how a replica is divided, and how many there are."""
        names = [words.split() for words in (self.tensor, self.pipeline, self.data)]
        tensor, pipeline, copies = (_number(reading, *known) if known else 1 for known in names)
        inside = reading.flag("enable_dp_attention")  # SGLang's copies are among its tensor ranks
        gpus = tensor * pipeline * (1 if inside else copies)
        if inside and tensor % copies == 0:
            tensor //= copies
        mixture = num_experts(_text_config(reading)) > 1
        degree = reading.get(self.expert)
        if mixture and degree is not None and str(degree).lower() not in ("false", "1"):
            ranks = gpus // pipeline if degree is True or not str(degree).isdecimal() else int(degree)
            reading.set("expert_parallel", ranks, self.expert)
        elif mixture and inside:
            reading.set("expert_parallel", gpus // pipeline, "enable_dp_attention")
        for field, value, known in (
            ("tensor_parallel", tensor, names[0]),
            ("pipeline_parallel", pipeline, names[1]),
            ("data_parallel_replicate", copies, names[2]),
            ("num_gpus", gpus, [*names[0], *names[1], *names[2]]),
        ):
            if value > 1 or field == "num_gpus":
                reading.set(field, value, *known)
        nodes = _number(reading, "nnodes")
        if nodes == 1 and gpus > GPUS_OF_A_NODE and gpus % GPUS_OF_A_NODE == 0:
            nodes = gpus // GPUS_OF_A_NODE
        if nodes > 1 and gpus % nodes == 0:
            reading.set("num_nodes", nodes, "nnodes")


def _format(name: str, words: _Words, not_modelled: str) -> Format:
    return Format(
        name,
        (fixed(phase="serve", method="full"), Row(words.keys, words.read)),
        model_key=words.model.split()[0],
        not_modelled=not_modelled,
        lists_its_keys=False,
        adapt=lambda keys: {key.replace("-", "_"): value for key, value in keys.items()},
    )


VLLM = _format(
    "vLLM",
    _Words(
        model="model model_tag",
        tensor="tensor_parallel_size tp",
        pipeline="pipeline_parallel_size pp",
        data="data_parallel_size dp",
        expert="enable_expert_parallel",
        room="max_model_len",
        sequences="max_num_seqs",
        batched="max_num_batched_tokens",
        share="gpu_memory_utilization",
        drafts="speculative_config.num_speculative_tokens num_speculative_tokens",
        starts_with_room=True,
    ),
    "enforce_eager cpu_offload_gb enable_lora kv_transfer_config",
)
SGLANG = _format(
    "SGLang",
    _Words(
        model="model_path model",
        tensor="tp tp_size tensor_parallel_size",
        pipeline="pp pp_size pipeline_parallel_size",
        data="dp dp_size data_parallel_size",
        expert="ep",
        room="context_length",
        sequences="max_running_requests",
        batched="chunked_prefill_size",
        share="mem_fraction_static",
        drafts="speculative_num_draft_tokens speculative_num_steps",
    ),
    "disable_cuda_graph cpu_offload_gb lora_paths disaggregation_mode",
)
TENSORRT_LLM = _format(
    "TensorRT-LLM",
    _Words(
        model="model",
        tensor="tp_size",
        pipeline="pp_size",
        expert="ep_size",
        room="max_seq_len",
        sequences="max_batch_size",
        batched="max_num_tokens",
        share="kv_cache_free_gpu_memory_fraction",
    ),
    "extra_llm_api_options config",
)
TGI = _format(
    "TGI",
    _Words(
        model="model_id",
        tensor="num_shard",
        room="max_total_tokens",
        sequences="max_batch_size",
        batched="max_batch_prefill_tokens",
        share="cuda_memory_fraction",
    ),
    "speculate lora_adapters rope_scaling",
)
LIGHTLLM = _format(
    "LightLLM",
    _Words(
        model="model_dir",
        tensor="tp",
        data="dp",
        room="max_req_total_len",
        sequences="running_max_req_size",
        batched="batch_max_tokens",
        share="mem_fraction",
    ),
    "disable_cudagraph max_total_token_num",
)
