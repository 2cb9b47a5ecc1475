"""Every screen at five widths: no line is wider, no number is cut, and a pipe gets one line for each row."""

import json
import re

import pytest

from tests.e2e.commands import finegauge

SCREENS = (
    ("gpus", "list"),
    ("models", "list", "qwen"),
    ("offers", "--gpu", "h100"),
    ("datasets", "list"),
    ("frameworks",),
    ("estimate", "llama-3-8b", "num_samples=1000"),
    ("explain", "mixtral-8x7b", "method=qlora", "--gpu", "a40"),
    ("check", "llama-3-8b", "--gpu", "4090"),
    ("check", "llama-3-8b", "method=full", "--gpu", "4090"),
    ("estimate", "llama-3-8b", "method=full", "micro_batch_size=16", "--gpu", "4090"),
    ("max-batch", "llama-3-8b", "--gpu", "a40"),
    ("whatif", "llama-3-8b", "--gpu", "a40", "num_samples=1000"),
    ("plan", "llama-3-8b", "--gpu", "a40", "num_samples=1000"),
    ("can", "qwen3-32b", "--gpu", "4090:2"),
    ("doctor",),
)
NUMBER = re.compile(r"(?<![\w.,–-])\d[\d,]*\.\d+(?![\w–-])")  # of which a half would be another number
WIDTHS = (60, 80, 100, 120, 160)


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(re.sub(r"Searched .* ms|Searched .* s, ", "", text)))


@pytest.mark.parametrize("words", SCREENS, ids=lambda words: words[0])
def test_no_line_is_too_wide_and_no_number_cut(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {}
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        done = finegauge(*words)
        assert done.out, done.err
        said[width] = done.out
        long = [line for line in done.out.splitlines() if len(line) > width]
        assert not [line for line in long if len(line.split()) > 1], long  # one word, as a URL is, may be
    whole = numbers(said[160])
    for width in WIDTHS:
        assert numbers(said[width]) <= whole, width


@pytest.mark.parametrize("words", [("gpus", "list"), ("offers", "--gpu", "h100", "--limit", "20")])
def test_a_pipe_gets_one_line_a_row(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = finegauge(*words).out.splitlines()
    listed = {"gpus": "gpus list --json", "offers": "offers --gpu h100 --json"}[words[0]].split()
    names = json.loads(finegauge(*listed).out)
    expected = [row.get("name") or row["provider"] for row in names][:20]
    shown = [line for line in rows if any(line.startswith(name) for name in expected)]
    assert len(shown) >= len(expected)
