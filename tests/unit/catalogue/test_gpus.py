"""GPU look-ups, and GPUs that the user adds."""

from pathlib import Path

import pytest

from finegauge.catalogue.gpus import gpu, gpus, known_gpu, matching_gpus, smaller
from finegauge.catalogue.tables import table
from finegauge.errors import FieldError, FileFormatError, InputError, UnknownKeyError, UnknownNameError
from finegauge.errors import UnsupportedError as Unsupported

FUTURE = """
name: X900-SXM-512GB
aliases: [x900]
memory_bytes: 512e9
memory_bytes_per_s: 2.0e+13
flops_per_s: {bf16: 9e15, fp8: 1.8e16}
board_power_w: 1800
source: rumour of 2027
"""


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("H100_80GB", "H100-SXM5-80GB"),
        ("a100", "A100-SXM4-40GB"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("a100-80gb", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("a40", "A40"),
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("v100", "V100-SXM2-16GB"),
        ("l40s", "L40S"),
        ("MI300x", "MI300X"),
    ],
)
def test_names_and_aliases(name: str, means: str) -> None:
    assert gpu(name).name == means


def test_unknown_name_suggests_a_neighbour() -> None:
    with pytest.raises(UnknownNameError, match=r"No GPU named 'A41'\. Did you mean 'A4.*finegauge gpus"):
        gpu("A41")


@pytest.mark.parametrize("name", ["", "-", "x" * 10_000, "../../etc/passwd"])
def test_nonsense_is_unknown(name: str) -> None:
    with pytest.raises(UnknownNameError):
        gpu(name)


def test_missing_dtype_names_what_there_is() -> None:
    with pytest.raises(Unsupported, match=r"V100-SXM2-16GB has no bf16 matrix rate.*fp16"):
        gpu("v100").peak_flops_per_s("bf16")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100", {"H100-PCIE-80GB", "H100-SXM5-80GB", "H100-SXM-96GB-HBM2e", "H100-NVL-94GB"}),
        ("a10", {"A10"}),
        ("4090", {"RTX 4090"}),
    ],
)
def test_family(text: str, expected: set[str]) -> None:
    assert set(matching_gpus(text)) == expected


def test_gpu_that_does_not_exist_yet(home: Path) -> None:
    (home / "gpus").mkdir(parents=True)
    (home / "gpus" / "x900.yaml").write_text(FUTURE, "utf-8")
    found = gpu("x900")
    assert found.peak_flops_per_s("bf16") == 9e15
    assert found.memory_bytes == 512e9
    assert 0.9 * found.memory_bytes < found.usable_bytes < found.memory_bytes
    assert found.board_power_w == 1800
    assert found.source == "rumour of 2027"
    assert "X900-SXM-512GB" in gpus()
    assert len(gpus()) == len(table("gpus.csv")) + 1


def test_gpu_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FUTURE, "utf-8")
    assert gpu(str(path)).name == "X900-SXM-512GB"
    assert known_gpu(str(path)) is None


def test_user_row_wins(home: Path) -> None:
    (home / "gpus").mkdir(parents=True)
    (home / "gpus" / "a40.json").write_text(
        '[{"name": "A40", "memory_bytes": 48e9, "memory_bytes_per_s": 7e11, "flops_per_s": {"bf16": 1e14}}]',
        "utf-8",
    )
    assert gpu("a40").peak_flops_per_s("bf16") == 1e14


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ("board_power: 5", UnknownKeyError, "unknown key 'board_power'. Did you mean 'board_power_w'"),
        ("board_power_w: -5", FieldError, "'board_power_w' should be a number above zero, not '-5'"),
        ("l2_bytes: yes", FieldError, "'l2_bytes' should be a number above zero"),
        ("usable_bytes: 900e9", FieldError, "usable_bytes is above memory_bytes"),
        ("boost_hz: 1e40", FieldError, "'boost_hz' should be a number above zero"),
        ("aliases: {a: b}", FieldError, "'aliases' should be a list of names"),
        ("vendor: [a]", FieldError, "'vendor' should be text"),
        ("notes: &b [1]\nvendor: *c", FileFormatError, "anchor"),
        (
            "notes: !!python/object:os.system x",
            FileFormatError,
            "the tag '!!python/object:os.system' is refused",
        ),
        ("notes: [", FileFormatError, "line"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, line: str, error: type[Exception], says: str) -> None:
    path = tmp_path / "bad.yaml"
    future = FUTURE.replace("board_power_w: 1800\n", "").replace("aliases: [x900]\n", "")
    path.write_text(f"{future}{line}\n", "utf-8")
    with pytest.raises(error) as caught:
        gpu(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: X\nmemory_bytes: 1e10\nmemory_bytes_per_s: 1e12\n", "'flops_per_s' is missing"),
        ("name: X\nmemory_bytes: 1e10\nmemory_bytes_per_s: 1e12\nflops_per_s: 5\n", "dense rates by dtype"),
        (
            "name: X\nmemory_bytes: 1e10\nmemory_bytes_per_s: 1e12\nflops_per_s: {bf61: 5}\n",
            "unknown key 'bf61'. Did you mean 'bf16'",
        ),
        ("just text", "expected one row or a list of rows"),
    ],
)
def test_incomplete_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as caught:
        gpu(str(path))
    assert says in str(caught.value)


def test_missing_and_oversized_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No file"):
        gpu(str(tmp_path / "none.yaml"))
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * 6_000_000)
    with pytest.raises(FileFormatError, match=r"6\.0 MB"):
        gpu(str(big))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not UTF-8 text"):
        gpu(str(binary))


@pytest.mark.parametrize(
    ("name", "halved"), [("RTX 4090", True), ("A10G", True), ("L40S", False), ("A100-80GB", False)]
)
def test_which_cards_accumulate_at_half_rate(name: str, *, halved: bool) -> None:
    assert gpu(name).halves_accumulation is halved


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("A100 (80GB)", "A100-SXM4-80GB"),
        ("NVIDIA Blackwell GPU (B200-SXM-180GB)", "B200-SXM-180GB"),
        ("NVIDIA Blackwell GPU (GB200)", "GB200-186GB"),
        ("H100-96GB-HBM2e-500W", "H100-SXM-96GB-HBM2e"),
        ("A800-80GB", "A800-SXM4-80GB"),
        ("Colab T4", "T4"),  # who lends it
        ("Google Colab Pro A100", "A100-SXM4-40GB"),
        ("kaggle p100", "P100-PCIE-16GB"),
        ("t4 colab", "T4"),
        ("H100 on RunPod", "H100-SXM5-80GB"),
        ("macbook pro m3 max", "Apple M3 Max 128GB"),
        ("a100 80", "A100-SXM4-80GB"),
        ("v100 32", "V100-SXM2-32GB"),
        ("4060 ti 8gb", "RTX 4060 Ti 8GB"),
        ("laptop 4070", "RTX 4070 Laptop"),
    ],
)
def test_what_stands_in_brackets_may_name_the_gpu(written: str, meant: str) -> None:
    assert gpu(written).name == meant


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("4060 ti", "RTX 4060 Ti 8GB"),
        ("4060 ti 16gb", ""),
        ("m3 max", "Apple M3 Max 96GB"),
        ("a100", ""),  # the smaller one
        ("H100", ""),
    ],
)
def test_a_name_of_cards_with_several_sizes(name: str, less: str) -> None:
    assert smaller(name, gpu(name)) == less


def test_brackets_do_not_hide_what_is_unknown() -> None:
    assert known_gpu("H100 (12345GB)") is None
    assert known_gpu("RTX 4090 24GB") == known_gpu("RTX 4090")
    assert known_gpu("RTX 4090 48GB") is None  # no such card was made


@pytest.mark.parametrize(
    ("name", "num_gb", "share", "of_memory"),
    [
        ("A100 3g.20gb", 20, 3 / 7, 4 / 8),
        ("H100 MIG 1g.10gb", 10, 1 / 7, 1 / 8),
        ("a100-80gb 7g.80gb", 80, 1, 1),
        ("A30 1g.6gb", 6, 1 / 4, 2 / 8),
    ],
)
def test_an_instance_of_mig_is_a_share_of_its_gpu(
    name: str, num_gb: int, share: float, of_memory: float
) -> None:
    whole, part = gpu(name.split(maxsplit=1)[0]), gpu(name)
    assert part.memory_bytes == num_gb * 1e9
    assert part.flops_per_s["bf16"] == pytest.approx(share * whole.flops_per_s["bf16"])
    assert part.memory_bytes_per_s == pytest.approx(of_memory * whole.memory_bytes_per_s)
    assert part.nvlink_bytes_per_s == 0


@pytest.mark.parametrize("name", ["RTX 4090 1g.3gb", "A100 7g.80gb"])
def test_no_instance_where_there_is_no_mig_or_no_such_memory(name: str) -> None:
    with pytest.raises(UnknownNameError):
        gpu(name)


@pytest.mark.parametrize(
    ("name", "why"), [("Tesla K80", "older than Pascal"), ("inf2.xlarge", "trains nothing")]
)
def test_what_is_not_predicted_says_why(name: str, why: str) -> None:
    with pytest.raises(FieldError, match=why):
        gpu(name)
