"""Every moment of jobs that really run here: peaks of torch and of the process against the prediction.

More jobs, on four processes too, are measured by `python -m benchmarks.moments`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from finegauge.answers.measurement import measure_answer, measured
from finegauge.measurement.options import Options
from finegauge.render.json import document
from finegauge.render.schema import schema
from finegauge.run.run import Run

pytestmark = pytest.mark.slow
ALLOCATED, RESIDENT = 0.03, 0.10
MOMENTS = ["load", "train", "evaluation", "save", "resume"]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 768,
    "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 12,
    "num_key_value_heads": 12, "vocab_size": 16_000, "tie_word_embeddings": False,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
WHOLE = {"method": "full", "weights_dtype": "fp32"}
LORA = {"method": "lora", "lora_rank": 16}
# In bf16: 10 to 30 times slower than fp32 on a processor without instructions for it.
FEW_TOKENS = {"seq_len": 16, "micro_batch_size": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one process, a mapped base model": ("bfloat16", {**LORA, **FEW_TOKENS}),
    "one process, converted": ("bfloat16", WHOLE),
    "two processes, ZeRO-3": (
        "bfloat16",
        {"method": "full", "num_gpus": 2, "sharding": "zero3", **FEW_TOKENS},
    ),
    "two processes, FSDP": (
        "float32",
        {**WHOLE, "num_gpus": 2, "sharding": "fsdp", "save_state": "sharded"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_peaks_of_every_moment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tmp_path / "compiled"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(compiled))
    dtype, fields = CASES[name]
    folder = tmp_path / "model"
    folder.mkdir()
    config = {**CONFIG, "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    run = Run.from_fields(
        {"model": str(folder), "seq_len": 128, "micro_batch_size": 2, "eval_samples": 4, **fields}
    )
    found = measured(run, Options(steps=1, warmup_steps=1, memory=False, moments=True))
    assert not compiled.exists(), "a lock that a killed compiler left there would be waited for"
    answer = measure_answer(found)
    one = answer.results[0]
    assert one.is_whole, one.reason
    processes = {moment.rank for moment in one.moments}
    assert processes == set(range(run.num_gpus))
    for rank in processes:
        assert [moment.moment for moment in one.moments if moment.rank == rank] == MOMENTS
    for moment in one.moments:
        where = f"{moment.moment} of rank {moment.rank}: {moment}"
        assert moment.predicted_allocated_bytes == pytest.approx(moment.allocated_bytes, rel=ALLOCATED), where
        assert moment.predicted_resident_bytes == pytest.approx(moment.resident_bytes, rel=RESIDENT), where
    Draft202012Validator(schema("measure")).validate(json.loads(document("measure", answer)))
