"""`finegauge trace`, end to end: an unknown model_type is refused, traced, and then answered for."""

import json
import sys
from pathlib import Path

import pytest

from finegauge.model import graph
from finegauge.model.families.dense import DENSE
from tests.e2e.commands import Done, finegauge

FIGURES = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "auto_map": {"AutoModelForCausalLM": "own.Code"},
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the folder of a model whose type nothing describes, its cache empty."""
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delitem(DENSE, "llama")
    graph._read.cache_clear()
    graph._build.cache_clear()
    (tmp_path / "config.json").write_text(json.dumps(FIGURES), encoding="utf-8")
    return str(tmp_path)


@pytest.fixture
def one_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace one mode of eight: enough for what is asked here, in a few seconds."""
    from finegauge.measurement.tracer import document

    monkeypatch.setattr(document, "MODES", ("bf16/sdpa",))


def total_gib(done: Done) -> float:
    """Return the peak memory that an estimate printed as JSON."""
    (result,) = json.loads(done.out)["results"]
    return float(result["device_memory_bytes"])


def test_an_unknown_type_says_what_to_install(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = finegauge("estimate", model, "--gpu", "l4")
    assert done.code == 64
    assert "model_type 'llama' is not supported yet" in done.err
    assert "torch and transformers is missing: pip install torch==2.13.0 'finegauge[measure]'" in done.err


@pytest.mark.usefixtures("one_mode")
def test_an_unknown_type_is_traced_by_itself_once(model: str) -> None:
    done = finegauge("estimate", model, "--gpu", "l4", "--json")
    assert done.code == 0
    assert "model_type 'llama' is not supported yet. Did you mean" in done.err
    assert "Tracing its transformers class, once" in done.err
    assert "auto_map" not in done.out
    again = finegauge("estimate", model, "--gpu", "l4", "--json")
    assert (again.err, total_gib(again)) == ("", total_gib(done))


@pytest.mark.usefixtures("one_mode")
def test_after_a_trace_every_command_answers(model: str) -> None:
    traced = finegauge("trace", model)
    assert (traced.code, traced.err) == (0, "")
    assert "3 x" in traced.out
    assert "auto_map" in traced.out
    full = finegauge("estimate", model, "--gpu", "l4", "--json", "method=full")
    lora = finegauge("estimate", model, "--gpu", "l4", "--json", "method=lora", "lora_targets=q_proj")
    again = finegauge("estimate", model, "--gpu", "l4", "--json", "seq_len=8192")
    whole = finegauge(
        "estimate", model, "--gpu", "l4", "--json", "activation_checkpointing=none", "seq_len=8192"
    )
    assert [done.code for done in (full, lora, again, whole)] == [0, 0, 0, 0]
    assert total_gib(lora) < total_gib(full)
    assert total_gib(again) < total_gib(whole)
    for command in ("explain", "check", "max-batch", "max-length"):
        assert finegauge(command, model, "--gpu", "l4", "method=qlora").code == 0, command
    assert "parameters" in finegauge("models", "show", model).out
    other_mode = finegauge("estimate", model, "--gpu", "l4", "attention=eager")
    assert (other_mode.code, "could not be traced as bf16/eager" in other_mode.err) == (64, True)


@pytest.mark.usefixtures("one_mode")
def test_json_tells_what_was_found(model: str) -> None:
    found = json.loads(finegauge("trace", model, "--json").out)
    per_layer = 128 * (128 + 64 + 64 + 128) + 3 * 128 * 256 + 2 * 128
    assert found["parameters"] == 3 * per_layer + 2 * 500 * 128 + 128
    assert Path(found["path"]).is_file()


def test_a_described_type_needs_no_trace() -> None:
    done = finegauge("trace", "mistralai/Mixtral-8x7B-v0.1")
    assert done.code == 64
    assert "described already" in done.err


def test_without_torch_it_says_what_to_install(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("finegauge.measurement.tracer")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    done = finegauge("trace", model)
    assert done.code == 64
    assert "pip install 'finegauge[measure]'" in done.err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model_type": "nobodys_model"},
            "has no causal language model for model_type 'nobodys_model'; its repo",
        ),
        ({"num_attention_heads": 3, "head_dim": None}, "refuses this config.json"),
        ({"hidden_size": "wide"}, "Error: "),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(
    model: str, changes: dict[str, object], sentence: str
) -> None:
    config = Path(model) / "config.json"
    config.write_text(json.dumps(FIGURES | changes), encoding="utf-8")
    done = finegauge("trace", model)
    assert done.code == 64
    assert sentence in done.err
    assert done.err.count("\n") == 1
