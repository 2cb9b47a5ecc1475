"""Data sets by name and by file."""

from pathlib import Path

import pytest

from finegauge.catalogue.datasets import dataset, datasets, samples_in
from finegauge.errors import InputError, UnknownNameError, UnsupportedError


@pytest.mark.parametrize("name", ["commonsense_15k", "Commonsense-15K", "cs"])
def test_names(name: str) -> None:
    assert dataset(name).num_samples == 15_119


def test_mean() -> None:
    assert dataset("math_14k").mean_tokens == pytest.approx(187, abs=1)
    assert datasets()["metamathqa"].mean_tokens is None


def test_lengths_about_a_published_median() -> None:
    found = dataset("gsm8k")
    assert found.median_tokens == 186
    assert found.mean_tokens == pytest.approx(
        186 * 1.25, rel=0.01
    )  # of a log-normal whose deviation is 0.75 means


def test_unknown_and_samples_only() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'math_14k'"):
        dataset("math_15k")
    with pytest.raises(
        UnsupportedError, match=r"number of samples is known: .*dataset=none num_samples=395000"
    ):
        dataset("meta-math/MetaMathQA")


def test_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("length,count\n10,3\n20,1\n10,1\n\n", "utf-8")
    found = dataset(str(path))
    assert found.name == "mine"
    assert found.lengths == ((10, 4), (20, 1))
    assert found.num_samples == 5
    assert found.median_tokens == 10
    assert found.max_tokens == 20


def test_user_file(home: Path) -> None:
    (home / "datasets").mkdir(parents=True)
    (home / "datasets" / "mine.yaml").write_text("name: mine\nlengths: {128: 7, 256: 3}\n", "utf-8")
    assert dataset("mine").num_samples == 10


@pytest.mark.parametrize(
    ("filename", "text", "says"),
    [
        ("a.csv", "tokens,n\n1,2\n", "the first line should be 'length,count'"),
        ("a.csv", "length,count\n1,2,3\n", "line 2: 2 cells expected, 3 found"),
        ("a.csv", "length,count\nx,2\n", "pairs of whole numbers"),
        ("a.csv", "length,count\n", "needs lengths of 1 to"),
        ("a.csv", "length,count\n0,2\n", "needs lengths of 1 to"),
        ("a.csv", "length,count\n5,-2\n", "needs lengths of 1 to"),
        ("a.csv", f"length,count\n5,{10**400}\n", "sum to more than 1e+12 samples"),
        ("a.csv", "", "the first line should be"),
        ("a.yaml", "name: x\nlengths: 5\n", "pairs of whole numbers"),
        ("a.yaml", "name: x\nlengths: {5: 2}\nnum_samples: 3\n", "num_samples=3"),
        ("a.yaml", "name: x\n", "'lengths' is missing"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, filename: str, text: str, says: str) -> None:
    path = tmp_path / filename
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as caught:
        dataset(str(path))
    assert says in str(caught.value)


def test_a_mean_alone_is_spread_as_published_instruction_sets_are() -> None:
    short, long = dataset("instructions-of-100-tokens"), dataset("Instructions_of_400_tokens")
    assert short.mean_tokens == pytest.approx(100, rel=0.01)
    assert long.mean_tokens == pytest.approx(400, rel=0.01)
    assert short.max_tokens is not None
    assert long.max_tokens is not None
    assert long.max_tokens == pytest.approx(4 * short.max_tokens, rel=0.01)
    assert 7 * 400 < long.max_tokens < 9 * 400
    with pytest.raises(UnknownNameError):
        dataset("instructions-of-0-tokens")


def test_a_file_of_no_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("[]", "utf-8")
    with pytest.raises(InputError, match=r"mine\.json: 'name' is missing"):
        dataset(str(path))


@pytest.mark.parametrize(
    "name", ["https://huggingface.co/datasets/yahma/alpaca-cleaned", "datasets/GAIR/LIMO/"]
)
def test_the_page_of_a_data_set_is_its_name(name: str) -> None:
    assert samples_in(name) in (51_760, 817)
