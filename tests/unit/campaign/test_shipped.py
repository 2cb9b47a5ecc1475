"""The sweeps that come with FineGauge: each reads, asks what it is about, and is answered."""

import re
from pathlib import Path

import pytest

from finegauge.campaign.axes import MEASURED, PREDICTED, Cell, Folder
from finegauge.campaign.driver import carry_out
from finegauge.campaign.gains import CHEN, DIMENSIONS, ClaimHeld, Comparison, compare_results, hold
from finegauge.campaign.sweep import FOLDER, Sweep, read_sweep, shipped, sweep_path
from finegauge.catalogue.gpus import gpu
from finegauge.errors import FileFormatError, UnknownNameError
from finegauge.progress import Progress
from tests.unit.campaign.sweeps import SaidEngine

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("deepspeed_chat", "dissecting", "xia2024")
PAGE = (ROOT / "docs" / "campaigns.md").read_text("utf-8")
FIVE = {"zero1", "zero2", "zero3", "lora", "checkpointing"}


@pytest.fixture(scope="module")
def sweeps() -> dict[str, Sweep]:
    return {name: read_sweep(name) for name in NAMES}


@pytest.fixture(scope="module")
def chat(sweeps: dict[str, Sweep], tmp_path_factory: pytest.TempPathFactory) -> list[Comparison]:
    """Return what is predicted of opt-350m in DeepSpeed-Chat's phases on eight A100."""
    whole = sweeps["deepspeed_chat"]
    asked = {"actor": "opt-350m", "gpu": "A100-SXM4-40GB", "num_gpus": "8"}
    cells = [one for one in whole.cells if at(one, **asked)]
    folder = str(tmp_path_factory.mktemp("chat"))
    carry_out(whole._replace(cells=tuple(cells)), folder, SaidEngine())
    kept = Folder(folder)
    return compare_results(kept.results(), axes=kept.described().axes)


def at(cell: Cell, **labels: str) -> bool:
    return all(cell.labels.get(name) == value for name, value in labels.items())


def held(comparisons: list[Comparison], name: str) -> ClaimHeld:
    return next(one for one in hold(CHEN, comparisons) if one.claim == name)


def test_these_are_shipped_and_the_page_names_them() -> None:
    assert tuple(shipped()) == NAMES
    for name in NAMES:
        assert f"`{name}`" in PAGE


def test_a_bare_name_is_found_whatever_its_dashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sweep_path("DeepSpeed-Chat") == shipped()["deepspeed_chat"]
    (tmp_path / "xia2024").mkdir()  # where its results go
    assert sweep_path("xia2024") == shipped()["xia2024"]
    (tmp_path / "mine").write_text("run: {model: llama-2-7b, method: lora, gpu: a40}\n", "utf-8")
    assert len(read_sweep("mine").cells) == 1


def test_a_wrong_name_is_refused_with_its_neighbour_and_a_wrong_path_as_a_path() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'xia2024'.*finegauge campaign --list"):
        read_sweep("xia2042")
    for path in ("xia2042.yaml", "./xia2042"):
        with pytest.raises(FileFormatError):
            read_sweep(path)


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_makes_a_run(name: str, sweeps: dict[str, Sweep]) -> None:
    sweep = sweeps[name]
    assert sweep.about
    assert not [(dict(cell.labels), cell.refusal) for cell in sweep.cells if cell.run is None]
    assert {cell.estimator for cell in sweep.cells} == {PREDICTED, MEASURED}
    for part in (PREDICTED, MEASURED):
        assert sweep.only(part).cells


@pytest.mark.parametrize("name", NAMES)
def test_what_is_measured_is_small_and_here(name: str, sweeps: dict[str, Sweep]) -> None:
    for cell in sweeps[name].only(MEASURED).cells:
        assert cell.run is not None
        assert cell.options is not None
        assert cell.run.model.startswith(FOLDER)
        assert cell.run.num_gpus <= 2
        assert (cell.options.device, bool(cell.options.timeout_s)) == ("cpu", True)


def test_deepspeed_chat_asks_the_whole_matrix(sweeps: dict[str, Sweep]) -> None:
    sweep = sweeps["deepspeed_chat"]
    assert sweep.claims == CHEN.name
    assert "reconstruction" in sweep.about
    assert set(sweep.axes["switch"]) == FIVE | {"baseline"}
    assert sweep.axes["phase"] == ["sft", "reward", "ppo"]
    assert len(sweep.axes["gpu"]) >= 3
    assert set(sweep.axes["num_gpus"]) == {"1", "2", "4", "8"}
    for part, here in ((PREDICTED, {"num_gpus": "8", "gpu": "RTX 3090"}), (MEASURED, {})):
        cells = [one for one in sweep.only(part).cells if at(one, **here) and not one.repetition]
        assert {(one.labels["phase"], one.labels["switch"]) for one in cells} == {
            (phase, switch) for phase in ("sft", "reward", "ppo") for switch in (*FIVE, "baseline")
        }


def test_xia_asks_batches_lengths_and_a_gpu_of_a_file(sweeps: dict[str, Sweep]) -> None:
    sweep = sweeps["xia2024"].only(PREDICTED)
    runs = [cell.run for cell in sweep.cells if cell.run is not None]
    assert {run.seq_len for run in runs if run.dataset is None} == {64, 128, 256, 512, 1024}
    assert {run.num_experts_per_tok for run in runs} == {2, 8}
    (future,) = {run.gpu for run in runs if run.gpu and run.gpu.endswith(".yaml")}
    assert gpu(future).memory_bytes == 120e9


def test_dissecting_asks_four_tasks_of_three_sizes_on_three_machines(sweeps: dict[str, Sweep]) -> None:
    asked = sweeps["dissecting"].only(PREDICTED).cells
    points = {tuple(cell.labels[name] for name in ("gpu", "size", "task")) for cell in asked}
    assert len(points) == 36
    assert {cell.run.num_gpus for cell in asked if cell.run} == {8}


def hold_answered(sweep: Sweep, folder: Path) -> None:
    """Carry predictions out and fail where one has no answer."""
    heard: list[Progress] = []
    summary = carry_out(sweep, str(folder), SaidEngine(), heard=heard.append)
    assert set(summary.outcomes) <= {"completed", "out_of_memory"}
    assert summary.outcomes["completed"] > len(sweep.cells) // 3
    assert heard[-1].done == heard[-1].total == len(sweep.cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_predictions_have_an_answer(name: str, sweeps: dict[str, Sweep], tmp_path: Path) -> None:
    """One cell in seven, and the first of each value of an axis; `make slow` asks all."""
    sweep = sweeps[name].only(PREDICTED)
    first = {value: n for n, cell in reversed([*enumerate(sweep.cells)]) for value in cell.labels.items()}
    asked = sorted({*range(0, len(sweep.cells), 7), *first.values()})
    hold_answered(sweep._replace(cells=tuple(sweep.cells[n] for n in asked)), tmp_path)


def test_eight_a100_agree_with_the_abstract(chat: list[Comparison]) -> None:
    assert [one.labels["phase"] for one in chat] == ["sft", "reward", "ppo"]
    assert [gain.name for gain in chat[0].gains] == ["zero1", "zero2", "zero3", "lora", "checkpointing"]
    for name in ("checkpointing-memory", "none-best", "little-energy"):
        assert held(chat, name).verdict == "agrees", name


def test_and_where_they_do_not_the_figures_say_so(chat: list[Comparison]) -> None:
    faster = held(chat, "zero1-speed")
    assert faster.verdict == "partly"  # a step of PPO is generation, whose update is nothing
    assert [labels["phase"] for labels, _ in faster.fails_at] == ["ppo"]
    lowest = held(chat, "checkpointing-energy")
    assert lowest.verdict == "partly"  # ZeRO-3 takes more where the model is small
    assert all("zero3" in because or "lora" in because for _, because in lowest.fails_at)


def test_the_page_has_the_figures_of_today_to_a_sixth(chat: list[Comparison]) -> None:
    rows = re.findall(r"^\| (\w+) \| ([\d., ]+) \| ([\d., ]+) \| ([\d., ]+) \|$", PAGE, re.MULTILINE)
    assert {name for name, *_ in rows} == FIVE
    for name, *phases in rows:
        for point, text in zip(chat, phases, strict=True):
            (gain,) = (one for one in point.gains if one.name == name)
            figures = [float(part) for part in text.split(",")]
            assert figures == pytest.approx([gain.ratios[dimension] for dimension in DIMENSIONS], rel=0.17)
