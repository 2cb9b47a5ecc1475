"""One rank of a tiny model, divided by torch's own code, and what a training step of it sends."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finegauge.prediction.collectives import exchanges
from finegauge.run.run import Run
from tests.oracle.counting_group import Counts
from tests.oracle.real_step import real_model

SIZES: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "pad_token_id": 0,
}  # fmt: skip

EXPERTS = ("gate_up_proj", "down_proj")


def tiny(folder: Path, **fields: Any) -> Run:
    """Return a run of a three-layer model in fp32."""
    config = folder / "config.json"
    config.write_text(json.dumps({**SIZES, **fields.pop("sizes", {})}), "utf-8")
    plain = {"method": "full", "weights_dtype": "fp32", "attention": "eager", "micro_batch_size": 2}
    return Run(**{"model": str(config), "seq_len": 32, **plain, **fields})


def ours(run: Run) -> Counts:
    """Return what we say that one rank sends in a step, by kind: (messages, bytes)."""
    found: dict[str, tuple[float, float]] = {}
    for volume in exchanges(run):
        times, size = found.get(volume.kind, (0.0, 0.0))
        found[volume.kind] = times + volume.num_per_step, size + volume.bytes_per_step
    return dict(sorted(found.items()))


def tokens_of(run: Run) -> Any:
    """Return a micro-batch of random tokens."""
    import torch

    return torch.randint(1, SIZES["vocab_size"], (run.micro_batch_size, run.seq_len))


def stepping(run: Run, model: Any) -> Callable[[], None]:
    """Return a step's passes, its micro-batches one after the other."""
    tokens = tokens_of(run)

    def step() -> None:
        for last in reversed(range(run.gradient_accumulation_steps)):
            _synchronise(model, last == 0)
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        model.zero_grad()

    return step


def _synchronise(model: Any, now: bool) -> None:
    """Reduce the gradients of the coming micro-batch, or only add them up, as accelerate does."""
    if hasattr(model, "require_backward_grad_sync"):
        model.require_backward_grad_sync = now
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(now)


def replicated(run: Run) -> Any:
    """Return the model under DDP."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(real_model(run))


def with_divided_experts(run: Run) -> Any:
    """Return the model whose experts transformers divides among the ranks, the rest under DDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    model = real_model(run)
    model.set_experts_implementation(run.experts_implementation)
    experts = [name for name, _ in model.named_modules() if name.endswith("mlp.experts")]
    plan = {f"{name}.{tensor}": "grouped_gemm" for name in experts for tensor in EXPERTS}
    plan |= dict.fromkeys(experts, "ep_dispatch_experts")
    mesh = init_device_mesh("cpu", (run.expert_parallel, 1), mesh_dim_names=("ep", "tp"))
    apply_expert_parallelism(model, mesh["ep"], mesh["tp"], plan, "all_to_all")
    apart = [name for name, _ in model.named_parameters() if name.endswith(EXPERTS)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, apart)
    return DistributedDataParallel(model)


def sharded(run: Run) -> Any:
    """Return the model under FSDP2: a unit for each layer, one for the rest."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape: tuple[int, ...] = (run.num_gpus,)
    names: tuple[str, ...] = ("shard",)
    if run.sharding == "hybrid":
        shape, names = (run.data_parallel_replicate, run.data_parallel_shard), ("replicate", "shard")
    options: dict[str, Any] = {"mesh": init_device_mesh("cpu", shape, mesh_dim_names=names)}
    if run.autocast == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    if run.sharding == "fsdp_shard_grad_op":
        options["reshard_after_forward"] = False
    model = real_model(run)
    base = model.get_base_model() if run.trains_adapters else model
    for layer in base.model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def sharded_by_the_first_fsdp(run: Run) -> Any:
    """Return the model under FSDP1, wrapped layer by layer as accelerate does."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = real_model(run)
    policy = ModuleWrapPolicy({type(model.model.layers[0])})
    device = torch.device("cpu")
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=device)


def tensor_parallel(run: Run) -> Any:
    """Return the model divided by DTensor as torchtitan does: one gathering of input for every branch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model, sequence = real_model(run), run.sequence_parallel
    mesh = init_device_mesh("cpu", (run.tensor_parallel,), mesh_dim_names=("tensor",))
    stream = Shard(1) if sequence else Replicate()
    ends = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "lm_head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    whole = (Replicate(),)
    layer: dict[str, Any] = {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": stream},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        "mlp": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=whole),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        layer[name] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        layer[name] = RowwiseParallel(output_layouts=stream)
    if sequence:
        ends["model.norm"] = SequenceParallel()
        layer |= {name: SequenceParallel() for name in ("input_layernorm", "post_attention_layernorm")}
    parallelize_module(model, mesh, ends)
    for one in model.model.layers:
        parallelize_module(one, mesh, layer)
    return model


def stepping_divided(run: Run, model: Any) -> Callable[[], None]:
    """Return a step of a model whose words are divided, its update included."""
    import torch
    from torch.distributed.tensor.parallel import loss_parallel

    tokens, length = tokens_of(run), run.seq_len
    places, mask = torch.arange(length)[None], torch.zeros(1, 1, length, length)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        for _ in range(run.gradient_accumulation_steps):
            logits = model(input_ids=tokens, position_ids=places, attention_mask=mask, use_cache=False).logits
            with loss_parallel():
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_transformers_plan(run: Run) -> Any:
    """Return the model divided by transformers' own plan."""
    from torch.distributed.device_mesh import init_device_mesh
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    model = real_model(run)
    mesh = init_device_mesh("cpu", (run.tensor_parallel,), mesh_dim_names=("tp",))
    plan: dict[str, str] = {}
    for name, module in model.named_modules():
        style = model.tp_plan.get(re.sub(r"\.\d+\.", ".*.", name))
        if style:
            plan |= dict.fromkeys((f"{name}.{own}" for own, _ in module.named_parameters()), style)
            plan[name] = style
    return apply_tensor_parallelism(model, mesh, plan)


def stepping_ring(run: Run) -> Callable[[], None]:
    """Return torch's ring of attention, both ways, once for every layer; its kernels do nothing."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel import _attention

    rows, length = run.micro_batch_size, run.seq_len // run.context_parallel
    width = SIZES["hidden_size"] // SIZES["num_attention_heads"]

    def heads(number: int) -> Any:
        return torch.randn(rows, number, length, width)

    query, key, value = (heads(SIZES[f"num_{of}_heads"]) for of in ("attention", "key_value", "key_value"))
    group: Any = dist.group.WORLD

    def forward(query: Any, key: Any, value: Any, **others: Any) -> Any:
        return torch.zeros_like(query), torch.zeros(query.shape[:-1])

    def backward(query: Any, key: Any, value: Any, **others: Any) -> Any:
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)

    def step() -> None:
        _attention.set_rotate_method("alltoall")
        for _ in range(SIZES["num_hidden_layers"]):
            out, lse = _attention._templated_ring_attention(
                group, 2, forward, query, key, value, is_causal=True
            )
            _attention._templated_ring_attention_backward(
                group, 2, backward, out, "grad_out", query, key, value, out, lse, is_causal=True
            )

    return step


def stage_of(run: Run, rank: int) -> Any:
    """Return the schedule of one pipeline rank, over stages of layers alone."""
    import torch
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    stages, chunks, steps = (
        run.pipeline_parallel,
        run.virtual_pipeline_stages,
        run.gradient_accumulation_steps,
    )
    rows, width = run.micro_batch_size, SIZES["hidden_size"]
    sample = torch.randn(rows, run.seq_len, width, requires_grad=True)

    def stage(index: int) -> Any:
        module = torch.nn.Linear(width, width)
        return PipelineStage(
            module, index, stages * chunks, torch.device("cpu"), input_args=(sample,), output_args=(sample,)
        )

    def loss(output: Any, target: Any) -> Any:
        return torch.nn.functional.mse_loss(output, target)

    if chunks > 1:
        parts = [stage(rank + chunk * stages) for chunk in range(chunks)]
        return ScheduleInterleaved1F1B(parts, steps, loss_fn=loss)
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[run.pipeline_schedule]
    return kind(stage(rank), steps, loss_fn=loss)


def stepping_stage(run: Run, schedule: Any, rank: int) -> Callable[[], None]:
    """Return a step of one pipeline rank."""
    import torch

    batch = torch.randn(
        run.micro_batch_size * run.gradient_accumulation_steps, run.seq_len, SIZES["hidden_size"]
    )

    def step() -> None:
        given = (batch,) if rank == 0 else ()
        target = {"target": batch} if rank == run.pipeline_parallel - 1 else {}
        schedule.step(*given, **target)

    return step
