"""A step on a GPU as torch.profiler writes it, in our own making: host threads, launches, kernels, flows.

Times are microseconds. The host runs ahead of the device; the backward pass runs in a
thread of its own, as autograd's does on CUDA.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from finegauge.measurement.instruments.kernel_trace import MODULE, STAGE, STEP

MAIN, AUTOGRAD = 100, 101
BF16 = "c10::BFloat16"
LAUNCH_US = 5.0
GROUPED = "cutlass::device_kernel<GroupedGemm>"
Event = dict[str, Any]


class Tape:
    """Writes the events of one process with one GPU."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now_us = {MAIN: 1000.0, AUTOGRAD: 1000.0}
        self.device_us = 1000.0
        self.thread = MAIN
        self._id = 0
        self._flow = 0

    @contextmanager
    def _span(self, cat: str, name: str, **args: Any) -> Iterator[Event]:
        thread, start = self.thread, self.now_us[self.thread]
        self._id += 1
        event: Event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start}
        event["args"] = {"External id": self._id, **args}
        self.events.append(event)
        self.now_us[thread] += 1.0
        yield event
        self.now_us[thread] += 1.0
        event["dur"] = self.now_us[thread] - start

    @contextmanager
    def range(self, name: str) -> Iterator[Event]:
        with self._span("user_annotation", name) as event:
            yield event

    @contextmanager
    def op(
        self, name: str, *shapes: list[int], dtype: str = BF16, values: list[str] | None = None
    ) -> Iterator[Event]:
        types = [dtype] * len(shapes)
        given = values or [""] * len(shapes)
        args = {"Input Dims": list(shapes), "Input type": types, "Concrete Inputs": given}
        with self._span("cpu_op", name, **args) as event:
            yield event

    def kernel(
        self, name: str, dur_us: float, *, external: bool = True, cat: str = "kernel", **args: Any
    ) -> None:
        """Launch a kernel from the operator that is open; without `external`, tied by the launch alone."""
        owner = self.events[-1]["args"]["External id"]
        self._id += 1
        launch: Event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1}
        launch |= {"tid": self.thread, "ts": self.now_us[self.thread], "dur": LAUNCH_US}
        launch["args"] = {"External id": owner, "correlation": self._id}
        self.now_us[self.thread] += LAUNCH_US
        start = max(self.device_us, self.now_us[self.thread])
        self.device_us = start + dur_us
        tied = {"External id": owner} if external else {}
        self.events.insert(-1, launch)  # the operator stays last, so that it can launch again
        self.events.insert(
            0,
            {
                "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": dur_us,
                "args": {"stream": 7, "correlation": self._id, **tied, **args},
            },
        )  # fmt: skip

    def flow(self, forward: Event, backward: Event) -> None:
        """Tie a backward operator to its forward one."""
        self._flow += 1
        for phase, event in (("s", forward), ("f", backward)):
            tie: Event = {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": self._flow, "pid": 1}
            self.events.insert(0, tie | {"tid": event["tid"], "ts": event["ts"]})

    def engine(self, node: str) -> AbstractContextManager[Event]:
        """Open autograd's call of a node."""
        return self._span("cpu_op", f"autograd::engine::evaluate_function: {node}")

    @contextmanager
    def backward_of(self, node: str, forward: Event) -> Iterator[None]:
        """Open autograd's call of the node of a forward operator."""
        with self.engine(node), self._span("cpu_op", node) as event:
            self.flow(forward, event)
            yield


def one_op(tape: Tape, name: str, kernel: str, dur_us: float, *shapes: list[int], **options: Any) -> Event:
    """Write an operator that launches one kernel."""
    external = options.pop("external", True)
    with tape.op(name, *shapes, **options) as event:
        tape.kernel(kernel, dur_us, external=external)
    return event


def qlora_moe_step() -> list[Event]:
    """Return one step of one layer: a 4-bit projection, attention, experts, a loss, an optimizer."""
    tape = Tape()
    with tape.range(STEP):
        with tape.range(f"{STAGE}forward"):
            done = _forward(tape)
        with tape.range(f"{STAGE}backward"):
            _backward(tape, done)
        tape.thread = MAIN
        tape.now_us[MAIN] = tape.now_us[AUTOGRAD]
        with tape.range(f"{STAGE}optimizer"), tape.range("Optimizer.step#AdamW.step"):
            one_op(tape, "aten::_fused_adamw_", "multi_tensor_apply_kernel<FusedAdam>", 20.0, [4096])
        tape.now_us[MAIN] = max(tape.now_us[MAIN], tape.device_us)
    return tape.events


def _forward(tape: Tape) -> dict[str, Event]:
    done = {}
    with tape.range(f"{MODULE}model.layers.0.input_layernorm"):
        done["norm"] = one_op(tape, "aten::mul", "vectorized_elementwise_kernel", 10.0, [512, 1024], [1024])
    with tape.range(f"{MODULE}model.layers.0.self_attn.q_proj"), tape.op("MatMul4Bit", [512, 1024]) as matmul:
        done["matmul"] = matmul
        one_op(
            tape,
            "bitsandbytes::dequantize_4bit",
            "kDequantizeBlockwise",
            40.0,
            [524288, 1],
            dtype="unsigned char",
        )
        with tape.op("aten::linear", [512, 1024], [1024, 1024]):
            one_op(tape, "aten::mm", "nvjet_hsh_128x128", 100.0, [512, 1024], [1024, 1024], external=False)
    with tape.range(f"{MODULE}model.layers.0.self_attn"):
        one_op(
            tape, "aten::_scaled_dot_product_flash_attention", "pytorch_flash::flash_fwd_kernel", 80.0,
            *([[1, 16, 512, 64]] * 3), values=["", "", "", "0.", "True", "False"],
        )  # fmt: skip
    with tape.range(f"{MODULE}model.layers.0.mlp.gate"):
        one_op(tape, "aten::_softmax", "softmax_warp_forward", 6.0, [512, 8])
        with tape.op("aten::topk", [512, 8]):
            tape.kernel("at::native::sbtopk::gatherTopK", 8.0)
    with tape.range(f"{MODULE}model.layers.0.mlp.experts"):
        done["experts"] = one_op(tape, "aten::_grouped_mm", GROUPED, 200.0, [1024, 1024], [8, 1024, 4096])
    one_op(tape, "aten::_log_softmax", "cunn_SoftMaxForward", 30.0, [512, 32000])
    with tape.op("aten::copy_", [512]):
        tape.kernel("Memcpy HtoD (Pageable -> Device)", 5.0, cat="gpu_memcpy", bytes=4096)
    return done


def _backward(tape: Tape, done: dict[str, Event]) -> None:
    tape.thread = AUTOGRAD
    tape.now_us[AUTOGRAD] = tape.now_us[MAIN]
    with tape.engine("CheckpointBackward0"), tape.range(f"{MODULE}model.layers.0.mlp.experts"):
        again = one_op(tape, "aten::_grouped_mm", GROUPED, 200.0, [1024, 1024], [8, 1024, 4096])
    with tape.backward_of("GroupedMmBackward0", again):
        one_op(tape, "aten::_grouped_mm", GROUPED, 210.0, [1024, 4096], [8, 4096, 1024])
        one_op(tape, "aten::_grouped_mm", GROUPED, 220.0, [1024, 1024], [1024, 4096])
    with tape.backward_of("MatMul4BitBackward", done["matmul"]):
        one_op(
            tape,
            "bitsandbytes::dequantize_4bit",
            "kDequantizeBlockwise",
            40.0,
            [524288, 1],
            dtype="unsigned char",
        )
        one_op(tape, "aten::mm", "nvjet_hsh_128x128", 100.0, [512, 1024], [1024, 1024])
    with tape.backward_of("LigerRMSNormBackward", done["norm"]):
        tape.kernel("_rms_norm_backward_kernel", 15.0)
