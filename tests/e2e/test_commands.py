"""What a user types, and what stands on the screen."""

import re
from pathlib import Path

import pytest

from finegauge import __version__
from finegauge.cli import COMMANDS
from tests.e2e.commands import BLACKMAMBA, EXAMPLES, MIXTRAL, ROOT, finegauge, shell

VERDICT = re.compile(
    r"^(Fits|Risky|Will not fit): [\d.]+ GiB \[[\d.]+–[\d.]+\] of [\d.]+ GiB on \S+, P\(OOM\) [<>]?\d+ %\."
)


@pytest.fixture(autouse=True)
def plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


WITH_GPU = [path for path in sorted(EXAMPLES.glob("*.yaml")) if "gpu: " in path.read_text("utf-8")]


@pytest.mark.parametrize("example", WITH_GPU, ids=lambda path: path.stem)
def test_estimate_says_the_verdict_first_and_stays_short(example: Path) -> None:
    done = finegauge("estimate", str(example))
    lines = done.out.splitlines()
    assert done.code == 0
    assert done.err == ""
    assert VERDICT.match(lines[0]), lines[0]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    for word in ("Memory", "Time", "Bottleneck", "Offers", "Assumed", "weights", "forward", "kWh"):
        assert word in done.out


@pytest.mark.parametrize(
    ("options", "overrides"),
    [
        (("--seq-len", "4096", "--batch-size=2"), ("seq_len=4096", "micro_batch_size=2")),
        (("--qlora", "--lora-r", "32"), ("method=qlora", "lora_rank=32")),
        (("--method", "full", "--gpus", "8", "--fsdp"), ("method=full", "num_gpus=8", "sharding=fsdp")),
        (("--packing",), ("packing=true",)),
    ],
)
def test_fields_may_be_written_as_options(options: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    asked, meant = (finegauge("read", "qwen3-8b", *words, "--json") for words in (options, overrides))
    assert asked.code == 0
    assert asked.out == meant.out


@pytest.mark.parametrize("command", ["estimate", "explain", "check", "can", "why", "read", "max-batch"])
def test_a_question_in_words(command: str) -> None:
    words = finegauge(command, "qwen3", "8b", "qlora", "on", "a", "4090")
    spelled = finegauge(command, "Qwen/Qwen3-8B", "method=qlora", "gpu=4090")
    assert words.code == 0
    assert words.out.replace("qwen3", "Qwen/Qwen3-8B", 1) == spelled.out or words.out == spelled.out


def test_a_plan_in_words_is_of_that_gpu() -> None:
    done = finegauge("plan", "qwen3", "8b", "on", "two", "4090")
    assert "on 2 x RTX 4090 (" in done.out.splitlines()[0]


def test_an_option_that_is_no_field_is_refused() -> None:
    done = finegauge("estimate", "qwen3-8b", "--frobnicate", "3")
    assert (done.code, done.err.split(".")[0]) == (64, "Error: No such option '--frobnicate'")


def test_estimate_of_several_gpus_is_one_table() -> None:
    done = finegauge("estimate", MIXTRAL, "--gpu", "a40,h100", "--gpu", "a100-40gb")
    assert done.code == 0
    assert done.out.startswith("Fits on A40, H100-SXM5-80GB, A100-SXM4-40GB.")
    assert "Bottleneck" not in done.out
    assert len([line for line in done.out.splitlines() if line.startswith(("A40 ", "H100-", "A100-"))]) == 3


def test_a_gpu_without_an_answer_does_not_spoil_the_others() -> None:
    done = finegauge("estimate", MIXTRAL, "--gpu", "a40,v100")
    assert done.code == 0
    assert done.out.startswith("Fits on A40") or done.out.startswith("Fits: ")
    assert re.search(r"^V100\S*: .*bf16", done.out, re.MULTILINE)


def test_estimate_without_a_gpu_compares_common_ones(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("model: llama-3-8b\nmethod: qlora\nseq_len: 1024\nnum_samples: 1000\n")
    done = finegauge("estimate", str(run))
    assert done.code == 0
    for name in ("L4", "RTX 4090", "A100-SXM4-80GB", "H200"):
        assert name in done.out


def test_overrides_change_the_question() -> None:
    one, four = (
        finegauge("estimate", MIXTRAL, f"micro_batch_size={size}").out.splitlines()[0] for size in (1, 4)
    )
    assert one != four


def test_what_does_not_fit_says_what_does() -> None:
    done = finegauge("estimate", MIXTRAL, "micro_batch_size=64")
    assert done.code == 0
    assert re.match(
        r"Will not fit: .* micro_batch_size=\d+ is safe, \d+ may fit\.", " ".join(done.out.split())
    )


def test_what_never_fits_says_what_to_do() -> None:
    done = finegauge("estimate", MIXTRAL, "--gpu", "t4", "autocast=fp16")
    assert "Not even micro_batch_size=1 fits" in " ".join(done.out.split()) or done.code == 64


def safe_and_most(command: str, example: str) -> tuple[int, int]:
    """Return the two borders that the first line says."""
    found = re.search(
        r": ([\d,]+) is safe, ([\d,]+) may fit$", finegauge(command, example).out.splitlines()[0]
    )
    assert found
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def test_at_max_batch() -> None:
    safe, _ = safe_and_most("max-batch", MIXTRAL)
    assert f"micro-batch {safe} ·" in finegauge("estimate", MIXTRAL, "--at-max-batch").out


def test_unknown_number_of_steps_is_said(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("model: llama-3-8b\nmethod: qlora\ngpu: A40\n")
    done = finegauge("estimate", str(run))
    assert done.code == 0
    assert "number of steps is not known" in done.out


def test_explain_adds_up_and_tells_every_origin() -> None:
    done = finegauge("explain", MIXTRAL, "micro_batch_size=2")
    assert done.code == 0
    waterfall = done.out.partition("so far\n")[2].partition("= what nvidia-smi shows")[0]
    amounts = re.findall(r"^ +(\d+\.\d{3}) +(\d+\.\d{3})  \S", waterfall, re.MULTILINE)
    assert sum(float(amount) for amount, _ in amounts) == pytest.approx(float(amounts[-1][1]), abs=0.01)
    assert re.search(r"micro_batch_size +2 +command line", done.out)
    assert re.search(r"seq_len +1024 +file", done.out)
    assert re.search(r"startup_s +180 +FineGauge default", done.out)
    assert max(map(len, done.out.splitlines())) <= 100


def test_what_will_not_fit_has_no_bill() -> None:
    assert "no bill" in finegauge("explain", MIXTRAL, "micro_batch_size=64").out
    shown = finegauge("estimate", MIXTRAL, "micro_batch_size=64").out
    assert "$" not in shown.partition("What makes it fit")[0]


def test_explain_without_a_number_of_steps(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("model: llama-3-8b\nmethod: qlora\ngpu: A40\n")
    assert "number of steps is not known" in finegauge("explain", str(run)).out


def test_explain_of_a_hybrid() -> None:
    done = finegauge("explain", BLACKMAMBA)
    assert done.code == 0
    assert "mamba" in done.out
    assert "optimizer" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([MIXTRAL], 0, "Fits"),
        ([MIXTRAL, "micro_batch_size=64"], 20, "Will not fit"),
        ([MIXTRAL, "--gpu", "h100,rtx4090"], 20, "Will not fit"),
    ],
)
def test_check_is_an_exit_code(arguments: list[str], code: int, said: str) -> None:
    done = finegauge("check", *arguments)
    assert done.code == code
    assert said in done.out
    verdicts = [line for line in done.out.splitlines() if not line.startswith(" ")]  # folded at words
    assert len(verdicts) == (2 if "--gpu" in arguments else 1)


def test_check_is_risky_at_the_border() -> None:
    safe, most = safe_and_most("max-batch", MIXTRAL)
    done = finegauge("check", MIXTRAL, f"micro_batch_size={most}")
    assert done.code == 10
    assert "Risky" in done.out
    assert f"micro_batch_size={safe} is safe, {most} may fit." in " ".join(done.out.split())
    assert finegauge("check", MIXTRAL, f"micro_batch_size={safe}").code == 0
    assert finegauge("check", MIXTRAL, f"micro_batch_size={safe + 1}").code == 10


def test_max_batch_of_several_gpus() -> None:
    done = finegauge("max-batch", BLACKMAMBA, "--gpu", "a40,a100-80gb")
    assert done.code == 0
    assert len(done.out.splitlines()) == 3


def test_max_batch_stops_at_its_limit() -> None:
    assert "≥ 3" in finegauge("max-batch", MIXTRAL, "--gpu", "h100", "--limit", "3").out


def test_max_length() -> None:
    done = finegauge("max-length", MIXTRAL)
    assert done.code == 0
    safe, most = safe_and_most("max-length", MIXTRAL)
    assert 0 < safe < most


def test_help_lists_every_command_without_importing_them() -> None:
    done = finegauge("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert f"  {command} " in done.out


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    done = finegauge(command, "--help")
    assert done.code == 0
    assert "Usage: finegauge" in done.out


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    for command in COMMANDS:
        assert f"finegauge {command}" in page


def test_version() -> None:
    assert finegauge("--version").out == f"finegauge {__version__}\n"


def test_a_process_of_its_own() -> None:
    done = shell("estimate", MIXTRAL)
    assert done.code == 0
    assert done.err == ""
    assert VERDICT.match(done.out)
    assert "\x1b" not in done.out


def test_a_terminal_without_unicode() -> None:
    done = shell("estimate", MIXTRAL, PYTHONIOENCODING="ascii")
    assert done.code == 0
    assert done.out.isascii()


def test_the_demo() -> None:
    import runpy
    from contextlib import redirect_stdout
    from io import StringIO

    out = StringIO()
    with redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / "demo.py"))
    assert len([line for line in out.getvalue().splitlines() if line.startswith(("dense ", "sparse "))]) == 32
    assert len((EXAMPLES / "demo.py").read_text().splitlines()) <= 44


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("models", "show", "llama3.1:8b"), "8,030,261,248"),
        (("models", "show", "somebody/Dolphin3.0-Qwen2.5-3b"), "read as the architecture of Qwen/Qwen2.5-3B"),
        (("gpus", "show", "p5.48xlarge"), "H100-SXM5-80GB"),
        (("offers", "g5.12xlarge"), "4 x A10G"),
        (("offers", "8xh100", "--limit", "1"), "8 x H100"),
        (("datasets", "show", "meta-math/MetaMathQA"), "395,000"),
    ],
)
def test_listings_know_the_names_that_questions_do(words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(finegauge(*words).out.split())
