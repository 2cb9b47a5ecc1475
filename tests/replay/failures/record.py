"""Make the real failures of this folder again: `python -m tests.replay.failures.record FOLDER [NAME]...`.

Each is a tiny training that really fails, in a process of its own: under an address-space limit (what the
processor's allocator says), on the meta device under a limit on live bytes (transformers' own code and its
frames, in the sentence that PyTorch prints of a GPU), on a file-size limit, or as two ranks of which one
stays away. Paths of the machine are taken out of what it prints. Recorded with torch 2.13, transformers 5.23.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from typing import Any

SEQ_LEN, ROWS = 512, 4
GIB = 2**30


def config(**more: Any) -> Any:
    """Return a model of 31 M parameters whose logits are its largest tensor."""
    from transformers import LlamaConfig

    shape = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8,
             "vocab_size": 32_000, "tie_word_embeddings": True, "max_position_embeddings": 2048}  # fmt: skip
    return LlamaConfig(**(shape | more))


def limit_more(num_bytes: int) -> None:
    """Let this process map no more than this beyond what it has."""
    with open("/proc/self/statm", encoding="utf-8") as figures:
        now = int(figures.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + num_bytes, resource.RLIM_INFINITY))


def trainer(folder: str, when: str, num_bytes: int, **arguments: Any) -> Any:
    """Return a trainer of transformers whose process is limited once it enters `when`."""
    import torch
    from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    class Limit(TrainerCallback):  # type: ignore[misc]
        def _at(self, name: str) -> None:
            if name == when:
                limit_more(num_bytes)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self._at("step")

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self._at("optimizer")

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self._at("end")

    class Limited(Trainer):  # type: ignore[misc]
        def compute_loss(self, *values: Any, **named: Any) -> Any:
            loss = super().compute_loss(*values, **named)
            if when == "backward":
                limit_more(num_bytes)
            return loss

    rows = [
        {"input_ids": torch.arange(SEQ_LEN) % 100, "labels": torch.arange(SEQ_LEN) % 100} for _ in range(32)
    ]
    stated = {"output_dir": folder, "max_steps": 2, "per_device_train_batch_size": ROWS, "use_cpu": True,
              "report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": False}  # fmt: skip
    model = LlamaForCausalLM(config())
    return Limited(
        model, TrainingArguments(**(stated | arguments)), train_dataset=rows, eval_dataset=rows,
        callbacks=[Limit()],
    )  # fmt: skip


def on_processor(name: str) -> None:
    """Fail under an address-space limit at the moment that `name` says."""
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    folder = tempfile.mkdtemp()
    if name == "load":
        LlamaForCausalLM(config()).save_pretrained(folder)
        limit_more(30_000_000)
        LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    elif name == "generate":
        model = LlamaForCausalLM(config())
        limit_more(60_000_000)
        model.generate(torch.ones(64, 512, dtype=torch.long), max_new_tokens=4)
    elif name == "resume":
        trainer(folder, "", 0, save_strategy="steps", save_steps=1).train()
        again = trainer(folder, "", 0)
        limit_more(100_000_000)
        again.train(resume_from_checkpoint=f"{folder}/checkpoint-1")
    else:
        when, num_bytes, more = {
            "forward": ("step", 20_000_000, {}),
            "loss": ("step", 750_000_000, {}),
            "backward": ("backward", 100_000_000, {}),
            "optimizer": ("optimizer", 50_000_000, {}),
            "evaluation": ("end", 100_000_000, {"eval_strategy": "steps", "eval_steps": 1,
                                                "per_device_eval_batch_size": 16}),
        }[name]  # fmt: skip
        trainer(folder, when, num_bytes, **more).train()


def on_disk() -> None:
    """Fail while a checkpoint is written, its file larger than files may be."""
    one = trainer(tempfile.mkdtemp(), "", 0, save_strategy="steps", save_steps=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, resource.RLIM_INFINITY))
    one.train()


def archive() -> None:
    """Fail while PyTorch's own archive is written, larger than files may be."""
    import torch

    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, resource.RLIM_INFINITY))
    torch.save(torch.zeros(4_000_000), f"{tempfile.mkdtemp()}/model.pt")


def prepare() -> None:
    """Fail while a data set is tokenised."""
    from datasets import Dataset

    rows = Dataset.from_list([{"text": "one two"}] * 4000)
    limit_more(30_000_000)
    rows.map(lambda row: {"input_ids": [list(range(100_000)) for _ in row["text"]]}, batched=True)


def rank() -> None:
    """Wait for the other rank, which stays away."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(10))
    else:
        import time

        time.sleep(10)


def killed_rank() -> None:
    """Be killed as the OOM killer kills: no word of one's own."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


ON_GPU: dict[str, tuple[dict[str, Any], float]] = {  # what really runs, and the GiB that there are
    "gpu_construct": ({}, 3.0), "gpu_forward": ({}, 3.0), "gpu_loss": ({}, 4.2), "gpu_backward": ({}, 5.8),
    "gpu_optimizer": ({}, 7.5), "gpu_no_checkpointing": ({"checkpointing": False}, 11.0),
    "gpu_no_lora": ({}, 8.0), "gpu_fp32": ({"dtype": "float32"}, 12.0), "gpu_rows": ({"rows": 8}, 12.0),
}  # fmt: skip


def on_gpu(name: str) -> None:
    """Train on the meta device until more bytes are alive than there are; say so as PyTorch does of a GPU."""
    import torch
    from transformers import LlamaForCausalLM

    from finegauge.measurement.instruments.memory_meter import LiveTracker

    really, capacity_gib = ON_GPU[name]
    dtype = getattr(torch, really.get("dtype", "bfloat16"))
    size = config(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                  num_key_value_heads=8, vocab_size=128_256)  # fmt: skip
    size._attn_implementation = "eager"

    class Limited(LiveTracker):
        def _register(self, out: Any, func: Any, args: tuple[Any, ...]) -> None:
            before = self.storages.total_bytes
            super()._register(out, func, args)
            now = self.storages.total_bytes
            tried = -(-(now - before) // (2 << 20)) * (2 << 20)
            free = capacity_gib * GIB - before
            if tried > free:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {said(tried)}. GPU 0 has a total capacity of "
                    f"{said(capacity_gib * GIB)} of which {said(free)} is free. Including non-PyTorch "
                    f"memory, this process has {said(before)} memory in use. Of the allocated memory "
                    f"{said(before)} is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but "
                    "unallocated. If reserved but unallocated memory is large try setting "
                    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
                )

    with Limited([]).watching():
        with torch.device("meta"):
            torch.set_default_dtype(dtype if name != "gpu_construct" else torch.float32)
            model = LlamaForCausalLM(size)
            torch.set_default_dtype(torch.float32)
        model.train()
        if really.get("checkpointing", True):
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        rows = torch.ones(int(really.get("rows", 1)), 2048, dtype=torch.long, device="meta")
        mask = torch.zeros(rows.shape[0], 1, 2048, 2048, dtype=dtype, device="meta")
        for _ in range(2):
            loss = model(input_ids=rows, attention_mask=mask, labels=rows, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def said(num_bytes: float) -> str:
    """Return bytes as c10's format_size writes them."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.2f} MiB"


def cleaned(text: str) -> str:
    """Return a text without the paths and process numbers of this machine."""
    text = re.sub(r"/[\w/.+-]*?/(?:site|dist)-packages/", "/venv/lib/python3.12/site-packages/", text)
    text = re.sub(r"/[\w/.+-]*?/lib/python3\.\d+/(?!site)", "/usr/lib/python3.12/", text)
    text = re.sub(r"/[\w/.+-]*?/tests/replay/failures/record\.py", "/home/user/train.py", text)
    text = re.sub(r"/[\w/.+-]*?/bin/python[\d.]*", "/usr/bin/python", re.sub(r"/tmp/\w+", "/tmp/run", text))
    ours = r"(?m)^  File \"[^\"]*(?:memory_meter|torch/_compile|_dynamo/eval_frame)\.py\".*\n(?:    .*\n)*"
    return re.sub(ours, "", re.sub(r"(?m)^  File .* in _register\n(?:    .*\n)*", "", text))


RANKS = ("rank", "killed_rank")
NAMES = (
    "load",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "evaluation",
    "save",
    "resume",
    "generate",
    "disk",
    "archive",
    "prepare",
)


def fail(name: str) -> None:
    """Run the failure that is named."""
    if name in ON_GPU:
        on_gpu(name)
    elif name in ("disk", "archive", "prepare"):
        {"disk": on_disk, "archive": archive, "prepare": prepare}[name]()
    else:
        on_processor(name)


def recorded(name: str) -> str:
    """Return what a failure prints, in a process of its own that has the libraries already."""
    reader, writer = os.pipe()
    if not os.fork():
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        signal.alarm(400)
        try:
            fail(name)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
        text = pipe.read()
    os.wait()
    return text


def main() -> None:
    """Run the failures that are named, or all, and write what each prints."""
    folder, *names = sys.argv[1:]
    for name in names or (*NAMES, *ON_GPU, *RANKS):
        if name in RANKS:
            ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29811"]
            words = [sys.executable, *ranks, __file__, name]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            text = done.stderr
        else:
            text = recorded(name)
        with open(os.path.join(folder, f"{name}.txt"), "w", encoding="utf-8") as file:
            file.write(cleaned(text[-20_000:]))
        print(name, len(text), flush=True)


if __name__ == "__main__":
    if sys.argv[1] in RANKS:
        globals()[sys.argv[1]]()
    else:
        main()
