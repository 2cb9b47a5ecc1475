"""Import, export, import is the identity; what a framework cannot say is refused or warned of, never lost."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from finegauge.errors import FineGaugeError
from finegauge.formats.reading import describe
from finegauge.formats.writing import FRAMEWORKS, Written, differences, write
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from tests.properties.test_readers_fuzz import HOSTILE, STEMS, paths_of, with_value
from tests.properties.test_run_round_trip import OPTIONAL_FIELDS, valid

MODELS = ("mixtral-8x7b", "qwen3-8b", "llama-2-7b", "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B")
# What people train: several GPUs and nodes, every method, the phases that frameworks have.
USUAL = OPTIONAL_FIELDS | {
    "phase": st.sampled_from(("sft", "sft", "sft", "pretrain", "dpo", "grpo", "reward")),
    "lora_rank": st.integers(1, 128),
    "seq_len": st.integers(64, 65_536),
    "micro_batch_size": st.integers(1, 64),
    "gradient_accumulation_steps": st.integers(1, 64),
    "epochs": st.sampled_from((0.5, 1.0, 3.0)),
    "lora_targets": st.sampled_from((("q_proj", "v_proj"), ("all-linear",), ("attention",))),
    "trainable_extra": st.sampled_from(((), (), ("embed_tokens", "lm_head"), ("norms",))),
    "checkpointing_reentrant": st.booleans(),
    "optimizer_implementation": st.sampled_from(("fused", "foreach", "in_backward")),
    "eval_samples": st.sampled_from((0, 100)),
    "saves_per_epoch": st.sampled_from((0.0, 1.0, 2.0)),
    "save_steps": st.sampled_from((None, 50.0, 0.1)),
    "eval_steps": st.sampled_from((None, 20.0, 0.25)),
    "num_experts_per_tok": st.just("all"),
    "expert_parallel": st.sampled_from((1, 1, 2)),
}
# What torchtitan trains: every weight, for a number of steps.
PRETRAINING = {"phase": st.just("pretrain"), "max_steps": st.integers(1, 10**6)}
FIELDS = st.fixed_dictionaries(
    {"model": st.sampled_from(MODELS), "method": st.sampled_from(("full", "lora", "qlora", "freeze"))},
    optional=USUAL,
)


def exported(run: Run, framework: str, folder: str) -> Written | None:
    """Return what is written, None where the framework refuses in one sentence."""
    try:
        return write(run, framework, folder)
    except FineGaugeError as error:
        sentence = str(error)
    assert sentence.isprintable()
    assert 10 < len(sentence) < 500
    assert not Path(folder).exists()
    return None


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "skypilot"])
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(fields=FIELDS, pretraining=st.fixed_dictionaries(PRETRAINING))
@example(  # a loss that few frameworks have
    fields={"model": "qwen3-8b", "method": "full", "loss": "compiled"},
    pretraining={"phase": "pretrain", "max_steps": 1},
)
@example(  # replicas whose only shards are those of a ring
    fields={"model": "mixtral-8x7b", "method": "full", "num_gpus": 4, "context_parallel": 2},
    pretraining={"phase": "pretrain", "max_steps": 1},
)
def test_import_export_import_is_the_identity(
    framework: str, fields: dict[str, Any], pretraining: dict[str, Any]
) -> None:
    if framework == "torchtitan":
        fields = {name: value for name, value in fields.items() if not name.startswith("lora_")}
        fields |= pretraining | {"method": "full", "packing": True}
    run = valid(fields)
    with TemporaryDirectory() as scratch:
        first = exported(run, framework, f"{scratch}/first")
        if first is None:
            return
        said_otherwise = {found.field for found in differences(run, first.run)}
        for field in said_otherwise:
            assert any(f"cannot say {field}=" in warning for warning in first.warnings)
        second = exported(first.run, framework, f"{scratch}/second")
        assert second is not None
        assert second.run.fields() == first.run.fields()
        assert not [warning for warning in second.warnings if "cannot say" in warning]
        if not said_otherwise:
            assert predicted(first.run) == predicted(run.replace(framework=first.run.framework))


def predicted(run: Run) -> tuple[float, float] | str:
    """Return bytes and seconds of a step, or why there is no prediction."""
    try:
        profile = predict(run.replace(gpu=run.gpu or "A100-SXM4-80GB"))
    except FineGaugeError as error:
        return type(error).__name__
    return profile.device_memory_bytes.total, profile.step_time_s.total


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(STEMS), st.sampled_from(list(FRAMEWORKS)), st.data())
def test_a_hostile_file_is_translated_or_refused(stem: str, framework: str, data: st.DataObject) -> None:
    document = yaml.safe_load(stem)
    for _ in range(data.draw(st.integers(0, 3))):
        if places := paths_of(document):
            place = data.draw(st.sampled_from(places))
            document = with_value(document, place, data.draw(st.sampled_from(HOSTILE)))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(yaml.safe_dump(document))
        try:
            written = write(describe(file), framework, Path(folder) / "new", recipe=file)
        except FineGaugeError as error:
            sentence = str(error)
            written = None
        if written is None:
            assert "\n" not in sentence
        else:
            again = describe(written.paths[0], alongside=written.alongside)
            assert again.fields() == written.run.fields()
