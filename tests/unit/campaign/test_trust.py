"""A sweep that somebody sent: it reaches nothing beyond its folder until the user trusts it."""

from pathlib import Path

import pytest

from finegauge.campaign.sweep import read_sweep
from finegauge.errors import InputError
from tests.e2e.commands import finegauge

RUN = "run: {model: llama-2-7b, method: lora, gpu: a100-80gb}"


def received(folder: Path, *lines: str) -> str:
    path = folder / "received" / "sweep.yaml"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("task_folder", "measured: {tasks: [mine], task_folder: tasks}"),
        ("trace_path", "measured: {trace_path: trace.json}"),
        ("trace_path", "measured: {axes: {trace_path: ['', /etc/passwd]}}"),
        ("endpoint", "measured: {endpoint: 'http://127.0.0.1:1', api_key_variable: HOME}"),
        ("api_key_variable", "measured: [{steps: 1}, {api_key_variable: AWS_SECRET_ACCESS_KEY}]"),
        ("endpoint", "measured: {axes: {engine: {here: , there: {endpoint: 'http://127.0.0.1:1'}}}}"),
    ],
)
def test_an_option_that_reaches_out_needs_trust(tmp_path: Path, option: str, line: str) -> None:
    path = received(tmp_path, RUN, line)
    with pytest.raises(InputError, match=f"'{option}' is taken only from a file that you trust.*--trust"):
        read_sweep(path)
    assert read_sweep(path, trust=True).cells


@pytest.mark.parametrize(
    "lines",
    [
        ("run: ../secret.yaml",),
        ("run: link.yaml",),
        ("run: {model: llama-2-7b, method: lora, dataset: ../secret.jsonl}",),
        ("run: {model: llama-2-7b, method: lora, tokenizer: link}",),
        (RUN, "axes: {dataset: [alpaca, ../secret.jsonl]}"),
        (RUN, "axes: {data: {a: {dataset: link/secret.jsonl}}}"),
        (RUN, "predicted: {run: ../secret.yaml}"),
        ("run: {model: llama-2-7b, method: lora, phase: ppo, critic_model: link}",),
        (RUN, "axes: {reward_model: [llama-2-7b, ../secret.yaml]}"),
        ("run: {model: /etc, method: lora}",),
        ("run: {model: ../nowhere, method: lora}",),
    ],
)
def test_a_file_outside_the_folder_needs_trust(tmp_path: Path, lines: tuple[str, ...]) -> None:
    path = received(tmp_path, *lines)
    (tmp_path / "secret.yaml").write_text("model: llama-2-7b\nmethod: lora\n", "utf-8")
    (tmp_path / "secret.jsonl").write_text('{"text": "a secret"}\n', "utf-8")
    (tmp_path / "received" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (tmp_path / "received" / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match=r"outside the sweep's folder.*--trust"):
        read_sweep(path)


@pytest.mark.parametrize("run", ["run: train.sh", "run: mine.yaml"])
def test_a_file_that_a_file_names_needs_trust(tmp_path: Path, run: str) -> None:
    path = received(tmp_path, run)
    here, secret = tmp_path / "received", tmp_path / "zero3.json"
    secret.write_text('{"zero_optimization": {"stage": 3}}', "utf-8")
    (here / "mine.yaml").write_text(
        "model_name_or_path: llama-2-7b\nstage: sft\nfinetuning_type: lora\ndeepspeed: ../zero3.json\n",
        "utf-8",
    )
    (here / "train.sh").write_text("llamafactory-cli train mine.yaml\n", "utf-8")
    with pytest.raises(InputError, match=r"zero3.json' is outside the sweep's folder.*--trust"):
        read_sweep(path)
    (cell,) = read_sweep(path, trust=True).cells
    assert cell.run is not None
    assert cell.run.sharding == "zero3"


def test_what_a_folder_links_to_needs_trust(tmp_path: Path) -> None:
    path = received(tmp_path, "run: {model: mine, method: lora, gpu: a100-80gb}")
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, '
        '"num_hidden_layers": 2, "num_attention_heads": 4}',
        "utf-8",
    )
    (tmp_path / "received" / "mine").mkdir()
    (tmp_path / "received" / "mine" / "config.json").symlink_to(tmp_path / "config.json")
    (cell,) = read_sweep(path).cells
    assert "is outside the sweep's folder" in cell.refusal
    assert finegauge("campaign", path, "-o", str(tmp_path / "out")).code == 0
    (cell,) = read_sweep(path, trust=True).cells
    assert cell.run is not None


def test_files_beside_the_sweep_need_none(tmp_path: Path) -> None:
    path = received(tmp_path, "run: mine.yaml", "axes: {micro_batch_size: [1, 2]}")
    (tmp_path / "received" / "mine.yaml").write_text("model: llama-2-7b\nmethod: lora\n", "utf-8")
    assert len(read_sweep(path).cells) == 2


def test_its_words_move_no_cursor_and_are_no_formula(tmp_path: Path) -> None:
    axes = r'axes: {"@data": {"=cmd|calc": {seq_len: 512}, "x\e]0;title\a": {seq_len: 1024}}}'
    path = received(tmp_path, r'name: "a\e[2Jb"', RUN, axes)
    folder, table = str(tmp_path / "out"), tmp_path / "out.csv"
    said = finegauge("campaign", path, "-o", folder)
    assert said.code == 0
    listed = finegauge("results", folder, "--columns", "@data", "--export", str(table))
    assert "x?]0;title?" in listed.out
    assert not {"\x1b", "\a"} & set(said.out + listed.out)
    assert table.read_text("utf-8") == '"\'@data"\n"\'=cmd|calc"\n"x?]0;title?"\n'
