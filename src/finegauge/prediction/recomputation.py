"""Activation checkpointing: which operators of a layer run again in backward, and in how many layers.

Full checkpointing (offloaded or not) keeps a layer's input and reruns the layer; selective checkpointing
keeps what matrix products and attention saved and reruns the cheap rest. Where attention is made of matrix
products, its scores are what memory is short of: then selective checkpointing reruns the core of attention,
from queries, keys and values, and keeps the rest ([1], section 5).

`recompute_modules` names the modules of a layer that selective checkpointing reruns, as Megatron-Core does
[2]. core_attn, mlp, moe and shared_experts are checkpointed: their input is kept, all of them runs again.
layernorm, moe_act and mla_up_proj give up their output alone, which the next product or attention would
have kept: what they read is kept anyway.

Full checkpointing may leave layers out [2]: `uniform` keeps one input for every n layers, all of which are
rebuilt together; `block` checkpoints the first n layers of every chunk of a pipeline stage; `every` each
n-th one (torchtitan's selective_ac_option [3]).

[1] Korthikanti et al. 2022, arXiv:2205.05198
[2] NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py (recompute_granularity, _method,
    _num_layers, _modules) and megatron/core/transformer/moe/README.md, core 0.15, read 2026-11-22
[3] pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py (_apply_layer_sac), 01db32e, read
    2026-11-22
"""

from collections.abc import Sequence

from finegauge.catalogue.frameworks import framework_of
from finegauge.model.graph import Graph, LayerGraph, architecture_of
from finegauge.model.op import ZERO, Extents, Op, per_token, saved_bytes
from finegauge.model.op_builder import CASTS, EXPERTS_CASTS, is_adapter, is_passive
from finegauge.records import NamedTuple
from finegauge.run.rules import WHOLE_LAYERS
from finegauge.run.run import Run

CHEAP_KINDS = frozenset({"norm", "elementwise", "gather", "softmax", "convolution"})
PRODUCTS = frozenset({"gemm", "grouped_gemm"})
SCORES = "attention_eager"
CORE = ("attention", SCORES)
LSE_BYTES = 4  # of a query's softmax, fp32, which attention's kernel keeps for every head
UP_PROJECTION = ("q_b_proj", "kv_b_proj", "q_proj", "rotary", "concatenate", "pad values")  # of MLA
INPUT_KEPT = ("mlp", "moe", "shared_experts")  # modules that are checkpointed with all that is in them
OF_LAYER = ("norm", "residual")  # of a branch, but of no module in it

Ops = tuple[Op, ...]


def split(run: Run, kind: str, ops: Ops) -> tuple[Ops, Ops]:
    """Return the operators of a layer whose saved tensors are kept, and those that run again.

    `kind` is how this layer is checkpointed. torchtitan's selective checkpointing per operator saves what
    attention and every second product return (`_get_custom_policy` counts aten.mm and saves the odd ones),
    and reruns the rest.
    """
    if kind == "none":
        return ops, ()
    if kind != "selective":
        return (), ops
    if run.recompute_modules:
        modules = modules_of(run, ops)
        reruns = [op for op, module in zip(ops, modules, strict=True) if module]
        if not run.checkpointing_reentrant:
            reruns = [op for name in run.recompute_modules for op in _early(name, ops, modules)]
        return _kept_by_modules(run, ops, modules), tuple(reruns)
    if keeps_no_input(run, kind, ops):
        core = tuple(op for op in ops if op.kind == SCORES)
        inputs = (op._replace(saved_bytes=per_token(op.saved_bytes.token)) for op in core)
        return (*(op for op in ops if op.kind != SCORES), *inputs), core
    if framework_of(run.framework).reruns_alternate_products:
        return _alternately(ops)
    cheap = tuple(op for op in ops if op.kind in CHEAP_KINDS)
    return tuple(op for op in ops if op.kind not in CHEAP_KINDS), cheap


def _alternately(ops: Ops) -> tuple[Ops, Ops]:
    """Return the same where outputs are kept: of attention, and of the first, third, fifth ... product.

    What is cast again is cast for one product of backward, where forward's casts serve both; largest values
    of tensors are kept (torchtitan's list of saved operators has `max`).
    """
    kept: list[Op] = []
    again: list[Op] = []
    number = 0
    for place, op in enumerate(ops):
        gemm = (
            op.forward.gemms[-1] if op.kind == "gemm" and op.forward.gemms else None
        )  # not of weights alone
        number += gemm is not None
        if gemm and number % 2:
            kept.append(op._replace(saved_bytes=per_token(2.0 * gemm.rows_per_token * gemm.n)))
        elif op.kind == "attention":  # what the next product reads, and one log-sum-exp per query
            width = next((gemm.k for later in ops[place:] for gemm in later.forward.gemms), 0)
            kept.append(op._replace(saved_bytes=per_token(2.0 * width + 4.0 * op.heads)))
        elif op.path[-1] in (CASTS, EXPERTS_CASTS):
            halved = op.forward._replace(bytes=op.forward.bytes.times(0.5))
            again.append(op._replace(forward=halved))
        else:
            (again if op.kind in (*CHEAP_KINDS, "gemm") else kept).append(op)
    return tuple(kept), tuple(again)


def _early(name: str, ops: Ops, modules: Sequence[str]) -> Ops:
    """Return what runs again of a module: of one whose input is kept, until the last tensor is there."""
    own = tuple([op for op, module in zip(ops, modules, strict=True) if module == name])
    return _until_last_kept(own) if name in INPUT_KEPT else own


def modules_of(run: Run, ops: Ops) -> list[str]:
    """Return for each operator of a layer the module of `recompute_modules` that it runs again in, or ""."""
    asked, parts = run.recompute_modules, {op.path[0] for op in ops}
    routed, latent = "moe" in parts, any(op.path[-1] == "kv_b_proj" for op in ops)
    found: list[str] = []
    normed: set[str] = set()
    for op in ops:
        part, name, module = op.path[0], op.path[-1], ""
        first_norm = op.kind == "norm" and part not in normed
        if first_norm:
            normed.add(part)
            module = "layernorm"
        elif name in OF_LAYER:
            module = ""
        elif op.kind in CORE:
            module = "core_attn"
        elif part == "attention" and latent and name in UP_PROJECTION:
            module = "mla_up_proj"
        elif part == "moe" or (part == "mlp" and routed):
            shared = part == "mlp" or "shared" in name
            module = "moe" if "moe" in asked else "shared_experts" if shared else ""
            if module not in asked and part == "moe" and name == "activation":
                module = "moe_act"
        elif part == "mlp":
            module = "mlp"
        found.append(module if module in asked else "")
    return found


def _kept_by_modules(run: Run, ops: Ops, modules: Sequence[str]) -> Ops:
    """Return the operators with what each of them keeps while `modules` do not."""
    asked, found, begun = run.recompute_modules, list[Op](), set[str]()
    discarded = False  # an input that a norm computed
    own_output = any(op.path[-1] == "o_proj" and op.saved_bytes != ZERO for op in ops)
    for op, module in zip(ops, modules, strict=True):
        saved = op.saved_bytes
        if op.kind == "norm":
            discarded = module == "layernorm"
        if module in INPUT_KEPT:
            entering = module not in begun and op.kind == "gemm"
            value_bytes = 4.0 if op.dtype == "fp32" else 2.0
            kept = entering and not discarded
            saved = per_token(op.forward.gemms[0].k * value_bytes) if kept else ZERO
            begun |= {module} if entering else set()
            found.append(op._replace(saved_bytes=saved, live_forward_bytes=op.passing_bytes))
            continue
        elif discarded and op.keeps_input and op.kind == "gemm":
            saved, discarded = ZERO, op.path[0] == "moe"  # shared experts read what the router does
        elif op.path[-1] == "down_proj" and op.kind == "grouped_gemm" and "moe_act" in asked:
            saved = ZERO
        elif op.kind == SCORES:
            saved = per_token(saved.token) if "core_attn" in asked else saved
        elif op.kind in CORE:
            token, log_sums = saved.token, LSE_BYTES * op.heads / run.tensor_parallel
            values = token - log_sums  # queries, keys, values and output, of one width in MLA
            if "core_attn" in asked:
                token -= log_sums + (values / 4 if own_output else 0.0)
            if "mla_up_proj" in asked and "mla_up_proj" in modules:
                token -= 0.75 * values
            saved = saved._replace(token=token)
        found.append(op._replace(saved_bytes=saved))
    return tuple(found)


def kept_at(run: Run, ops: Ops, extents: Extents) -> list[float] | None:
    """Return the bytes that autograd keeps when backward reaches each operator, one module rebuilt at a time.

    None where no modules are named: then all of a layer is rebuilt before any of it goes backward.
    """
    if run.activation_checkpointing != "selective" or not run.recompute_modules:
        return None
    modules = modules_of(run, ops)
    kept = _kept_by_modules(run, ops, modules)
    before, found = 0.0, list[float]()
    rebuilt: dict[str, float] = {}
    for op, less, module in zip(ops, kept, modules, strict=True):
        whole, own = op.saved_bytes.at(extents), less.saved_bytes.at(extents)
        found.append(before + whole + (rebuilt.get(module, 0.0) if module else 0.0))
        before = before + own
        rebuilt[module] = rebuilt.get(module, 0.0) + whole - own
    return found


def keeps_no_input(run: Run, kind: str, ops: Ops) -> bool:
    """Return whether modules of a layer are checkpointed, attention's core or others, not the layer."""
    scores = any(op.kind == SCORES for op in ops)
    return kind == "selective" and (bool(run.recompute_modules) or scores)


class Kind(NamedTuple):
    """The layers of one kind that are checkpointed alike, and what each of them holds."""

    group: LayerGraph
    how: str  # checkpointed
    place: int  # among the graph's layers
    saved_bytes: float  # by autograd
    outliving_bytes: float  # its backward pass
    handed_on: tuple[float, float]  # to later layers: before it is rebuilt, and after


def kinds_of(run: Run, graph: Graph, extents: Extents, stream: float) -> list[Kind]:
    """Return the layers that have a backward pass, by kind, with what they hold, in bytes."""
    places = {(group.kind, id(group.ops)): place for place, group in enumerate(graph.layers)}
    found = list[Kind]()
    for group, how in by_layer(run, [group for group in graph.layers if not group.passive]):
        saved = saved_bytes(split(run, how, group.ops)[0], extents)
        outlives = _outliving_bytes(run, group.ops, extents, stream)
        handed = _handed_on(run, graph, group.ops, extents)
        found.append(Kind(group, how, places[group.kind, id(group.ops)], saved, outlives, handed))
    return found


def by_layer(run: Run, layers: Sequence[LayerGraph]) -> list[tuple[LayerGraph, str]]:
    """Return the layers, those that are not checkpointed apart, each with how it is.

    Of a pipeline every kind of layer has its share of both.
    """
    kind, number = run.activation_checkpointing, run.recompute_num_layers
    if kind not in WHOLE_LAYERS or number is None or run.recompute_method == "uniform":
        return [(group, kind) for group in layers]
    total = sum(group.count for group in layers)
    chunks = run.pipeline_parallel * (run.virtual_pipeline_stages if run.pipeline_parallel > 1 else 1)
    share = min(1.0, number * chunks / max(1, architecture_of(run.model).num_layers))
    left = round(total * share)
    found: list[tuple[LayerGraph, str]] = []
    every = run.recompute_method == "every"  # whose last layer is checkpointed; of a block it is the first
    for group in layers:
        if every:
            again = group.count // number
        else:
            again = min(group.count, left if chunks == 1 else round(group.count * share))
            left -= again
        rest = (group._replace(count=group.count - again), "none")
        both = [(group._replace(count=again), kind), rest]
        found += [one for one in (reversed(both) if every else both) if one[0].count]
    return found


def layers_rebuilt_together(run: Run) -> int:
    """Return how many layers have one input kept between them, and are rebuilt at once."""
    uniform = run.activation_checkpointing in WHOLE_LAYERS and run.recompute_method == "uniform"
    return run.recompute_num_layers or 1 if uniform else 1


def rerun_share(run: Run, graph: Graph, ops: Ops | None = None) -> float:
    """Return which share of the layers of `ops`, or of all, is checkpointed whole; 1 for other operators."""
    if run.recompute_num_layers is None or ops is graph.embedding or ops is graph.head:
        return 1.0
    groups = [(group, kind) for group, kind in by_layer(run, graph.layers) if ops is None or group.ops is ops]
    return sum(g.count for g, kind in groups if kind != "none") / max(1, sum(g.count for g, _ in groups))


def passes_of_a_layer(run: Run, graph: Graph, module: str = "") -> float:
    """Return how often a layer's exchanges run in a step's micro-batch: forward, backward, and again.

    With `module`, those of a module that may be checkpointed by itself.
    """
    if run.activation_checkpointing in WHOLE_LAYERS:
        return 2.0 + rerun_share(run, graph)
    again = run.activation_checkpointing == "selective" and module in run.recompute_modules
    return 3.0 if again else 2.0


def rerun(run: Run, graph: Graph, ops: Ops) -> Ops:
    """Return what runs again of `ops`: of the embedding, of a layer or of the head.

    Layers below the first trainable weight need no backward, and do not run again. A chunked loss computes
    the logits again, unless it keeps its chunks. Reentrant checkpointing runs a whole layer; the other stops
    when the last tensor that backward needs is there: what a product keeps is its input, so the last product
    is not computed, unless a kernel encloses it.
    """
    if ops is graph.head:
        if run.loss != "chunked" or graph.lowering.chunks_kept:
            return ()
        first = [op.path[-1] for op in ops].index(graph.model.projection.name)
        return ops[first - (ops[first - 1].path[-1] == "cast weights") :]
    if ops is graph.embedding or is_passive(ops):
        return ()
    again = split(run, run.activation_checkpointing, ops)[1]
    if run.checkpointing_reentrant or run.activation_checkpointing != "full":
        nested = {layer.nested for layer, _ in graph.model.layers} if run.checkpointing_reentrant else set()
        if {op.path[0] for op in ops} - nested:  # first with the layer that it is in, keeping nothing
            inner = [op for op in again if op.path[0] in nested and op.path[-1] != "residual"]
            again = (*(op._replace(saved_bytes=ZERO) for op in inner), *again)
        return again
    return _until_last_kept(again)


def _outliving_bytes(run: Run, ops: Ops, extents: Extents, stream: float) -> float:
    """Return what a layer rebuilds and holds until its next forward pass.

    RecurrentGemma's recurrence keeps its last state, and with that the graph that made it again: of
    reentrant checkpointing, which goes through that graph, the input and its gradient alone.
    """
    own = [op for op in ops if op.path[0] == "recurrence"]
    last = next((place for place, op in enumerate(own) if op.kind == "scan"), -1)
    if run.activation_checkpointing not in WHOLE_LAYERS or last < 0:
        return 0.0
    if run.checkpointing_reentrant:
        return 2.0 * stream
    return saved_bytes(own[: last + 1], extents)


def _handed_on(run: Run, graph: Graph, ops: Ops, extents: Extents) -> tuple[float, float]:
    """Return what of a layer's keys and values later layers are handed holds, before it is rebuilt and after.

    A dictionary that every checkpoint holds has those of the last layer of each kind that makes its own and,
    once the layer is rebuilt, the graph that made them; reentrant checkpointing goes through that graph.
    """
    names, shared = [op.path[-1] for op in ops], graph.lowering.numerics.hands_on_keys
    if not shared or run.activation_checkpointing not in WHOLE_LAYERS or "k_proj" not in names:
        return 0.0, 0.0
    start = [index for index, op in enumerate(ops) if op.path == ("attention", "norm")]
    width = (
        2.0 * ops[names.index("k_proj")].forward.gemms[0].n * graph.lowering.returned_bytes * extents.tokens
    )
    made = [op for op in ops[: names.index("attention kernel")] if op is not ops[start[1]]]  # of the queries
    rebuilt = 0.0 if run.checkpointing_reentrant else saved_bytes(made, extents)
    return width, width + rebuilt


def _until_last_kept(again: Ops) -> Ops:
    """Return what is computed of operators before the last of them has kept its last tensor."""
    last = len(again) - 1
    while last >= 0 and not again[last].enclosed and again[last].saved_bytes == ZERO:
        last -= 1
    return (*again[:last], *_until_kept(again[last])) if last >= 0 else ()


def _until_kept(op: Op) -> Ops:
    if op.kind not in PRODUCTS or op.enclosed:
        return (op,)
    if not is_adapter(op) or len(op.forward.gemms) < 2:
        return ()
    down, up = op.forward.gemms[:2]  # the second of the pair keeps what the first returns
    flops = op.forward.flops._replace(token=2.0 * down.rows_per_token * down.n * down.k)
    returned = per_token(-2.0 * (4 if op.dtype == "fp32" else 2) * up.rows_per_token * up.n)  # and its sum
    live, forward = op.live_forward_bytes.plus(returned), op.forward._replace(flops=flops, gemms=(down,))
    return (op._replace(forward=forward, live_forward_bytes=live),)
