"""The GPUs of this machine, from what vendors' commands print: recorded outputs, by commands on PATH."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from finegauge.answers.runs import gpu_of_size, on_gpus, on_this_machine
from finegauge.catalogue import machine
from finegauge.catalogue.gpus import counted, gpu, known_gpu, this_gpu
from finegauge.catalogue.machine import MIB, GpuHere, gpus_here
from finegauge.errors import FieldError, InputError, UnknownNameError, UnsupportedError
from finegauge.prediction.predictor import predict, predict_memory
from finegauge.run.run import FROM_MODEL_ALONE, FROM_THIS_MACHINE, Run
from tests.e2e.commands import finegauge

# nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.free,driver_version,mig.mode.current
TWO_4090 = """0, GPU-5d0c2a11, NVIDIA GeForce RTX 4090, 24564, 12000, 550.54.15, [N/A]
1, GPU-9be1f3c7, NVIDIA GeForce RTX 4090, 24564, 24112, 550.54.15, [N/A]"""
A100_MIG = "0, GPU-1, NVIDIA A100-SXM4-80GB, 81920, 80000, 535.104.05, Enabled"
TWO_KINDS = f"{TWO_4090}\n2, GPU-c, Tesla T4, 15360, 14910, 550.54.15, [N/A]"
# rocm-smi --showproductname --showmeminfo vram --showdriverversion --json
MI300X = {
    "card0": {
        "VRAM Total Memory (B)": "206141652992",
        "VRAM Total Used Memory (B)": "6141652992",
        "Card Series": "AMD Instinct MI300X",
        "Card Model": "0x74a1",
    },
    "system": {"Driver version": "6.7.0"},
}
# amd-smi static --asic --vram --driver --json; amd-smi metric --mem-usage --json
AMD_STATIC = {
    "gpu_data": [{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "driver": {"version": "6.8"}}]
}
AMD_METRIC = [
    {"gpu": 0, "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "free_vram": {"value": 196300}}}
]
APPLE = "Apple M3 Max\n137438953472"
Put = Callable[[str, str], None]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Return what puts a command on an otherwise empty PATH."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    machine._found.cache_clear()

    def command(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (folder / name).chmod(0o755)
        machine._found.cache_clear()

    return command


def prints(text: str) -> str:
    return f"printf '%s\\n' '{text}'"


def test_no_command_is_no_gpu(put: Put) -> None:
    assert gpus_here() == ()
    assert on_this_machine(Run(model="qwen3-8b", method="lora")) is None
    with pytest.raises(UnsupportedError, match="has no GPU"):
        gpu("this")


def test_nvidia(put: Put) -> None:
    put("nvidia-smi", prints(TWO_4090))
    assert gpus_here()[1] == GpuHere("NVIDIA GeForce RTX 4090", 24564 * MIB, 24112 * MIB, "550.54.15")
    assert this_gpu() == ("RTX 4090", 24112 * MIB)
    assert this_gpu(2) == ("RTX 4090", 12000 * MIB)
    assert gpu("This").name == "RTX 4090"
    with pytest.raises(InputError, match=r"has 2 x NVIDIA GeForce RTX 4090, not 3\."):
        this_gpu(3)


@pytest.mark.parametrize(("visible", "free"), [("0", 12000), ("GPU-9b", 24112), ("1,0", 24112)])
def test_what_cuda_hides_is_not_there(
    put: Put, visible: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("nvidia-smi", prints(TWO_4090))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_gpu() == ("RTX 4090", free * MIB)
    machine._found.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_here() == ()


@pytest.mark.parametrize(
    ("name", "size", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", 81559, "H100-PCIE-80GB"),
        ("NVIDIA H200", 143771, "H200-SXM-141GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-PCIE-80GB"),
        ("Tesla T4", 15360, "T4"),
        ("Tesla V100-SXM2-16GB", 16384, "V100-SXM2-16GB"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("NVIDIA A10G", 23028, "A10G"),
        ("NVIDIA RTX A6000", 49140, "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "RTX 4090 Laptop"),
        ("NVIDIA GeForce RTX 5090", 32607, "RTX 5090"),
        ("NVIDIA B200", 183359, "B200-SXM-180GB"),
    ],
)
def test_names_that_nvidia_smi_prints(put: Put, name: str, size: int, found: str) -> None:
    put("nvidia-smi", prints(f"0, GPU-1, {name}, {size}, {size - 500}, 570.1, Disabled"))
    assert this_gpu()[0] == found


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        (TWO_KINDS, "2 kinds of GPU, NVIDIA GeForce RTX 4090 and Tesla T4: name one"),
        (A100_MIG, "is sliced by MIG"),
        ("0, GPU-1, NVIDIA Nobody 9000, 8192, 8000, 1, [N/A]", "NVIDIA Nobody 9000 .8.00 GiB. is not in the"),
    ],
)
def test_what_cannot_be_named(put: Put, printed: str, sentence: str) -> None:
    put("nvidia-smi", prints(printed))
    with pytest.raises(UnsupportedError, match=sentence):
        this_gpu()
    assert on_this_machine(Run(model="qwen3-8b", method="lora")) is None


@pytest.mark.parametrize(
    "script", ["exit 9", "echo No devices were found; exit 6", prints("garbage"), "true"]
)
def test_a_driver_that_fails_is_no_gpu(put: Put, script: str) -> None:
    put("nvidia-smi", script)
    assert gpus_here() == ()


def test_amd(put: Put) -> None:
    put("rocm-smi", prints(json.dumps(MI300X)))
    assert this_gpu() == ("MI300X", 200e9)
    put("rocm-smi", prints(json.dumps(MI300X).replace("AMD Instinct MI300X", "Aqua [AMD Instinct MI300X]")))
    assert this_gpu() == ("MI300X", 200e9)
    static, metric = prints(json.dumps(AMD_STATIC)), prints(json.dumps(AMD_METRIC))
    put("rocm-smi", "exit 1")
    put("amd-smi", f'if [ "$1" = static ]; then {static}; else {metric}; fi')
    assert this_gpu() == ("MI300X", 196300 * MIB)


def test_apple(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    put("sysctl", prints(APPLE))
    assert this_gpu() == ("Apple M3 Max 128GB", 0.75 * 2**37)


def test_a_chip_of_apple_is_known_with_every_memory() -> None:
    spec = gpu("m3 max 64gb")
    assert (spec.name, spec.usable_bytes) == ("Apple M3 Max 64GB", 48 * 2**30)
    assert gpu(spec.name) == spec
    assert known_gpu("m3 max 80gb") is None


def test_what_is_free_is_what_a_run_has(put: Put) -> None:
    put("nvidia-smi", prints(TWO_4090))
    run = Run(model="qwen3-8b", method="lora")
    (one,), (both,) = on_gpus(run, ("this",)), on_gpus(run, ("this:2",))
    assert (both.gpu, both.num_gpus, both.free_memory_bytes) == ("RTX 4090", 2, 12000 * MIB)
    assert one.origins["free_memory_bytes"] == FROM_THIS_MACHINE
    assert predict(one).capacity_bytes == gpu("RTX 4090").usable_bytes  # more is free than torch may have
    assert predict(both).capacity_bytes == predict_memory(both).capacity_bytes == 12000 * MIB
    assert predict(both).outcome == "out_of_memory"
    assert both.replace(gpu="H100").free_memory_bytes is None
    stated = run.replace(gpu="H100", free_memory_bytes=40e9)
    assert stated.replace(gpu="A40").free_memory_bytes == 40e9


def test_the_default_is_this_machine(put: Put) -> None:
    put("nvidia-smi", prints(TWO_4090))
    for command in ("estimate", "check", "whatif", "explain", "max-batch"):
        done = finegauge(command, "Qwen/Qwen3-8B")
        assert (done.code, done.err) == (0, ""), command
        assert "RTX 4090" in done.out
    assert "A40" in finegauge("check", "Qwen/Qwen3-8B", "--gpu", "a40").out
    assert on_this_machine(Run(model="qwen3-8b", method="lora", num_gpus=8)) is None
    put("nvidia-smi", prints(TWO_KINDS))
    assert "L40S" in finegauge("estimate", "Qwen/Qwen3-8B").out
    assert "2 kinds" in finegauge("estimate", "Qwen/Qwen3-8B", "--gpu", "this").err


@pytest.mark.parametrize(
    ("text", "name", "number"),
    [
        ("h100:8", "h100", 8),
        ("8xh100", "h100", 8),
        ("H100x8", "H100", 8),
        ("8 x A100-80GB", "A100-80GB", 8),
        ("2×rtx4090", "rtx4090", 2),
        ("rtx4090*2", "rtx4090", 2),
        ("4090:2", "4090", 2),
        ("MI300X", "MI300X", None),
        ("MI300X:8", "MI300X", 8),
        ("mi300xx8", "mi300x", 8),
        ("RTX 4090", "RTX 4090", None),
        ("this:4", "this", 4),
        ("thisx4", "this", 4),
        ("mine.yaml:2", "mine.yaml", 2),
        ("nobody:8", "nobody", 8),
        ("8xnobody", "8xnobody", None),
        ("g5.12xlarge", "A10G", 4),
        ("ml.p4d.24xlarge", "A100-SXM4-40GB", 8),
        ("a3-highgpu-8g", "H100-SXM5-80GB", 8),
        ("p5e.48xlarge", "H200-SXM-141GB", 8),
        ("Standard_ND96asr_v4", "A100-SXM4-40GB", 8),
        ("nd96asr", "A100-SXM4-40GB", 8),
        ("ND96isr", "ND96isr", None),  # of H100, H200 and MI300X
        ("gpu_8x_h100_sxm5", "h100_sxm5", 8),
        ("8 H100s", "H100", 8),
        ("4 L40S", "L40S", 4),
        ("6000 Ada", "6000 Ada", None),
        ("GPU T4 x2", "GPU T4", 2),  # as Kaggle has it
        ("runpod a40:2", "runpod a40", 2),
        ("kaggle 2xt4", "t4", 2),
        ("lambda 8xA100 80GB", "A100 80GB", 8),
        ("two 3090s", "3090", 2),
        ("dual 4090", "4090", 2),
        ("DGX H100", "H100", 8),
        ("hgx-b200", "b200", 8),
        ("gb200 nvl72", "gb200", 72),
        ("dgx spark", "dgx spark", None),
        ("dgx a100", "dgx a100", None),  # of 40 GB or of 80 GB
        ("ND H100 v5", "H100", 8),
        ("BM.GPU.H100.8", "H100-SXM5-80GB", 8),
        ("v5litepod-8", "TPU v5litepod", 8),
        ("dgx a100 80gb", "a100 80gb", 8),
        ("tpu-v5p-8", "TPU v5p", 4),  # by its cores
        ("foo xl4", "foo xl4", None),
        ("0 h100", "0 h100", None),
    ],
)
def test_how_many(text: str, name: str, number: int | None) -> None:
    assert counted(text) == (name, number)


def test_several_machines_are_nodes() -> None:
    with pytest.raises(FieldError, match="num_nodes=2 num_gpus=8"):
        counted("g5.12xlarge:2")


@pytest.mark.parametrize(
    ("name", "near"), [("g5.12xlarg", "g5.12xlarge"), ("Standard_ND96isr", "Standard_ND96")]
)
def test_a_mistyped_machine_has_its_neighbours(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}"):
        gpu(name)


def test_no_gpu_is_none() -> None:
    with pytest.raises(FieldError, match="names 0 GPUs"):
        counted("h100:0")


def test_a_model_that_lora_does_not_fit_is_quantised() -> None:
    origins = {"method": FROM_MODEL_ALONE}
    run = Run.from_fields(
        {"model": "qwen3-32b", "method": "lora", "activation_checkpointing": "full"}, origins
    )
    small, large = on_gpus(run, ("a40", "h100"))
    assert (small.method, large.method) == ("qlora", "lora")
    assert small.origins["method"] == "default of a model alone: LoRA does not fit"
    stated = run.replace(method="lora")
    assert [one.method for one in on_gpus(stated, ("a40", "h100"))] == ["lora", "lora"]
    done = finegauge("estimate", "qwen3-32b", "--gpu", "a40,h100")
    assert "On A40 with QLoRA in place of LoRA, which is not safe there." in done.out
    assert "lora rank 16 bf16" in done.out.splitlines()[1]
    both = json.loads(finegauge("estimate", "qwen3-32b", "--gpu", "a40,h100", "--json").out)["results"]
    assert [one["method"] for one in both] == ["qlora", "lora"]
    assert (
        "method"
        not in json.loads(finegauge("estimate", "qwen3-8b", "--gpu", "a40", "--json").out)["results"][0]
    )


def test_a_model_of_which_no_gpu_holds_a_copy_is_sharded() -> None:
    full = finegauge("estimate", "llama-3.3-70b", "--gpu", "h100:16,h200:16", "--full")
    assert full.out.startswith("Fits on H100-SXM5-80GB, H200-SXM-141GB.")
    assert "sharding=fsdp (default of a model alone: a copy on each GPU does not fit)" in " ".join(
        full.out.split()
    )
    fields = {"model": "llama-3.1-70b", "method": "lora", "activation_checkpointing": "full"}
    read = Run.from_fields(fields, {"method": FROM_MODEL_ALONE})
    lora, quantised = on_gpus(read, ("h100:8", "rtx4090:8"))
    assert (lora.method, lora.sharding, lora.sync_each_batch) == ("lora", "fsdp", True)
    assert (quantised.method, quantised.sharding) == ("qlora", "fsdp")
    small, large = on_gpus(read, ("h200:2", "b300:2"))
    assert (small.sharding, large.sharding) == ("fsdp", "none")
    (stated,) = on_gpus(read.replace(origin="command line", sharding="zero2"), ("h100:8",))
    assert (stated.method, stated.sharding) == ("qlora", "zero2")
    mixed = finegauge("estimate", "qwen3-32b", "--gpu", "h100:2,h200:2", "--full", "seq_len=512")
    assert (
        "sharded by FSDP, for a copy on each GPU is not safe there" not in mixed.out
    )  # on none is a copy safe
    mixed = finegauge("estimate", "qwen3-8b", "--gpu", "a100-40gb:2,h200:2", "--full", "seq_len=512")
    assert "On A100-SXM4-40GB sharded by FSDP" in " ".join(mixed.out.split())


def test_a_gpu_is_told_by_its_memory() -> None:
    assert gpu_of_size(23.64 * 2**30) == "RTX 4090"
    assert gpu_of_size(79.25 * 2**30) in ("A100-SXM4-80GB", "H100-SXM5-80GB")
    assert gpu_of_size(14.74 * 2**30) == "T4"
    assert gpu_of_size(1e15) == ""
