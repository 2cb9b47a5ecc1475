"""Folders of finished trainings, written byte by byte as the trainers and their loggers write them."""

import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

TINY = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000, "tie_word_embeddings": False,
    "dtype": "float32", "architectures": ["LlamaForCausalLM"], "_name_or_path": "/home/anna/secret-model",
}  # fmt: skip
ARGUMENTS = {
    "output_dir": "/home/anna/secret", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
    "max_steps": 6, "bf16": False, "fp16": False, "gradient_checkpointing": False, "num_train_epochs": 3.0,
    "logging_steps": 1, "use_cpu": False,
}  # fmt: skip


class Optimizer(Enum):
    """As transformers names optimizers."""

    ADAMW = "adamw_torch_fused"


@contextmanager
def importable(kind: type, module: str) -> Iterator[None]:
    """Let pickle find a class in a module that is not installed, while it writes."""
    kind.__module__, before = module, sys.modules.get(module)
    made = ModuleType(module)
    setattr(made, kind.__name__, kind)
    sys.modules[module] = made
    try:
        yield
    finally:
        sys.modules.pop(module)
        if before is not None:
            sys.modules[module] = before


def saved_arguments(path: Path, module: str = "transformers.training_args", **changes: Any) -> None:
    """Write training_args.bin: an instance of a class of the trainer, pickled into a zip file."""
    kind = type("SFTConfig" if "trl" in module else "TrainingArguments", (), {})
    made = kind()
    vars(made).update(ARGUMENTS | {"optim": Optimizer.ADAMW} | changes)
    with importable(kind, module):
        data = pickle.dumps(made, protocol=2)
    zipped(path, data)


def zipped(path: Path, data: bytes) -> None:
    """Write a pickle as torch.save does."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("training_args/data.pkl", data)
        archive.writestr("training_args/version", "3\n")


def state(folder: Path, *, tokens: int = 0, runtime_s: float = 9.0, steps: int = 6, **more: float) -> None:
    """Write trainer_state.json."""
    history: list[dict[str, Any]] = [
        {"step": n, "loss": 7.0 - n, **({"num_tokens": float(tokens * n)} if tokens else {})}
        for n in range(1, steps + 1)
    ]
    history.append({"step": steps, "train_runtime": runtime_s, "train_loss": 3.0, **more})
    whole = {"global_step": steps, "max_steps": steps, "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(whole), "utf-8")


def varint(number: int) -> bytes:
    """Return a whole number as protocol buffers have it."""
    head = bytearray()
    while number > 127:
        head.append(number & 127 | 128)
        number >>= 7
    return bytes([*head, number])


def field(number: int, value: bytes | float) -> bytes:
    """Return one field of a protocol buffer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 1) + struct.pack("<d", value)


def events(folder: Path, wall_s: Mapping[int, float], settings: Mapping[str, Any] | None = None) -> Path:
    """Write an event file of TensorBoard: a loss for each step, and the trainer's settings as a text."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if settings is not None:
        tensor = field(8, json.dumps(settings).encode())
        summary = field(1, field(1, b"args/text_summary") + field(8, tensor))
        written.append(field(1, 1.0) + field(5, summary))
    for step, at_s in wall_s.items():
        value = field(1, b"train/loss") + varint(2 << 3 | 5) + struct.pack("<f", 2.5)
        written.append(field(1, at_s) + field(2, step) + field(5, field(1, value)))
    file = folder / "events.out.tfevents.1.host.1.0"
    file.write_bytes(b"".join(struct.pack("<QI", len(one), 0) + one + b"\0" * 4 for one in written))
    return file


def wandb(folder: Path, wall_s: Mapping[int, float], settings: Mapping[str, Any], gpu: str = "") -> None:
    """Write an offline run of Weights & Biases, one record longer than a block."""
    inner = folder / "wandb" / "offline-run-20261123_120000-abc"
    inner.mkdir(parents=True)
    items = b"".join(
        field(1, field(1, name.encode()) + field(16, json.dumps(value).encode()))
        for name, value in {**settings, "long": "x" * 40_000}.items()
    )
    made = [field(17, field(4, items))]
    if gpu:
        made.append(field(26, field(18, gpu.encode()) + field(19, 1)))
    for step, at_s in wall_s.items():
        entry = {"train/global_step": step, "_timestamp": at_s, "train/loss": 1.5, "train/memory(GiB)": 3.5}
        made.append(field(2, b"".join(field(1, field(2, n.encode()) + field(16, json.dumps(v).encode()))
                                      for n, v in entry.items())))  # fmt: skip
    made.append(field(7, field(3, field(1, b"gpu.0.memoryAllocatedBytes") + field(16, b"8e9"))))
    (inner / "run-abc.wandb").write_bytes(b":W&B\xe1\xbe\x00" + log(made))


def log(written: list[bytes]) -> bytes:
    """Return records as LevelDB's log has them."""
    found, at = b"", 7
    for record in written:
        left, first = record, True
        while first or left:
            room = 32_768 - at % 32_768
            if room < 7:
                found += b"\0" * room
                at += room
                continue
            piece, left = left[: room - 7], left[room - 7 :]
            kind = (1 if not left else 2) if first else (4 if not left else 3)
            found += struct.pack("<IHB", 0, len(piece), kind) + piece
            at += 7 + len(piece)
            first = False
    return found


def mlflow(folder: Path, wall_s: Mapping[int, float], settings: Mapping[str, Any]) -> None:
    """Write a run of MLflow's file store."""
    inner = folder / "mlruns" / "0" / "d6f"
    (inner / "metrics").mkdir(parents=True)
    (inner / "params").mkdir()
    (inner / "meta.yaml").write_text("run_id: d6f\nuser_id: anna\n", "utf-8")
    lines = "".join(f"{at_s * 1e3:.0f} 2.5 {step}\n" for step, at_s in wall_s.items())
    (inner / "metrics" / "loss").write_text(lines, "utf-8")
    for name, value in settings.items():
        (inner / "params" / name).write_text(str(value), "utf-8")


def trained(folder: Path, step_s: float, *, module: str = "trl.trainer.sft_config", **changes: Any) -> Path:
    """Write an output folder of TRL's trainer whose steps took so long, by TensorBoard's clock."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY), "utf-8")
    limits = {"max_length": 128, "packing": False} if "trl" in module else {}
    saved_arguments(folder / "training_args.bin", module, **(limits | changes))
    asked: dict[str, Any] = ARGUMENTS | changes
    sequences = asked["per_device_train_batch_size"] * asked["gradient_accumulation_steps"]
    state(folder, tokens=int(changes.get("max_length", 128)) * sequences)
    events(folder / "runs" / "Nov23_host", {n: 1000.0 + n * step_s for n in range(1, 7)})
    return folder
