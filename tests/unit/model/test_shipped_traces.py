"""The traces that come with the package: every model of the catalogue is answered, or named as refused."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from finegauge.catalogue.models import model, models
from finegauge.model import traced
from finegauge.model.families import NOT_TRACED, architecture, is_described
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from tests.oracle.shipped_traces import traced_config, undescribed

FOLDER = Path(traced.__file__).parent / "data" / "traces"


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path))


def test_every_model_is_described_traced_or_refused_by_name() -> None:
    for name in models():
        kind = model(name).config.get("model_type")
        assert is_described(model(name).config) or name in undescribed() or kind in NOT_TRACED, name


def test_the_files_are_those_of_the_catalogue() -> None:
    wanted = {Path(traced.shipped_path(config)).name for name in models() if (config := traced_config(name))}
    assert {path.name for path in FOLDER.iterdir()} == wanted


@pytest.mark.parametrize("name", undescribed())
def test_a_shipped_trace_answers(name: str) -> None:
    config = model(name).config
    found = architecture(config)
    text = config.get("text_config") or config
    depth = text.get("num_hidden_layers") or text.get("num_layers") or text.get("num_blocks")
    assert found.num_layers == depth
    assert found.hidden_size == (text.get("hidden_size") or text.get("embedding_dim"))
    # xLSTM's class mixes widths unless the weights are fp32
    weights, autocast = ("fp32", "bf16") if config["model_type"] == "xlstm" else ("bf16", "none")
    for method in ("full", "lora"):
        run = Run(model=name, method=method, seq_len=1024, gpu="H200-SXM-141GB")
        profile = predict(run.replace(weights_dtype=weights, autocast=autocast))
        assert profile.step_time_s.total > 0
        assert profile.peak_memory_bytes.total > 2 * found.num_parameters


def test_an_own_trace_comes_first(tmp_path: Path) -> None:
    config = model(undescribed()[0]).config
    shipped = Path(traced.shipped_path(config)).read_text(encoding="utf-8")
    own = Path(traced.path_of(config))
    own.parent.mkdir(parents=True)
    own_version = re.sub(r'"5\.\d+\.\d+"', f'"{version("transformers")}"', shipped)
    assert own_version.count(f'"{version("transformers")}"') == 1
    own.write_text(own_version.replace('"layers"', '"lagers"'), encoding="utf-8")
    assert "damaged" in traced.read_trace(config)[1]
    own.unlink()
    assert traced.read_trace(config)[0] is not None
