"""How one method, precision and software stack turns a block into operators.

`Lowering` answers the questions that every block asks: does this weight train? is it
quantised? what does its adapter copy? Bitsandbytes before 0.43.2 stashed the input of
every 4-bit linear on the autograd context, where non-reentrant checkpointing cannot
discard it [2].

[1] Hu et al. 2021, arXiv:2106.09685 (LoRA); Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)
[2] bitsandbytes release notes, 0.43.2
"""

from typing import NamedTuple

from finegauge.model.adapters import Targets, last_name
from finegauge.model.blocks import Linear, Numerics

# Per parameter: NF4 in blocks of 64 with a 32-bit scale, whose scales double quantisation takes down to 8 bit
# (section 3 of the second paper in [1]); GPTQ in groups of 128.
QUANTIZED_BYTES = {
    "nf4": (4 + 32 / 64) / 8,
    "nf4_dq": (4 + 8 / 64 + 32 / (64 * 256)) / 8,
    "gptq4": (4 + 16 / 128 + 4 / 128) / 8,
    "gptq8": (8 + 16 / 128 + 8 / 128) / 8,
    "int8": 1.0,
    "fp8": 1.0,
}


class Lowering(NamedTuple):
    """The choices of a run that decide which operators a block becomes."""

    activation_bytes: int  # per element of the residual stream
    compute_bytes: int  # per element inside the layers (autocast computes in 16 bit)
    compute_dtype: str
    weight_bytes: int  # per element of an unquantised frozen or trained weight
    autocast: bool
    weights_train: bool
    norms_train: bool
    lora_rank: int
    targets: Targets
    lora_dropout: bool
    adapter_bytes: int
    quantized: str  # "" or the format of the quantised linears
    experts_quantized: bool
    stashes_inputs: bool  # 4-bit linears keep their input whatever trains
    stash_survives: bool  # ... and checkpointing cannot discard it
    rebuilds: bool  # non-reentrant checkpointing: what a node kept goes as it is read, not when it is done
    attention: str
    experts: str
    fused_experts: bool  # experts are held as transformers 5 holds them, all in one parameter
    fused_kernels: bool  # norms, rotary embedding and cross-entropy are one kernel each
    fused_activation: bool  # so is a gated activation with its product
    megatron: bool  # Megatron-LM's own code: one softmax of masked scores, GELU and residual with their bias
    loss: str
    logits_held: bool  # the 16-bit logits live until the loss is done
    logits_shifted: bool  # the loss copies the logits without the last (transformers before 4.50)
    narrow_loss: bool  # the loss is computed in 16 bit
    hands_back_cache: bool  # keys and values of every layer live until the loss is returned
    ssm_kernels: str
    numerics: Numerics
    input_gradients: bool  # the gradient is taken back to the embeddings even if they are frozen
    masked_windows: tuple[int, ...]  # windows that sdpa is given as a mask: no longer than the sequences
    repeats_keys: bool  # keys and values are copied for every query head that shares them
    on_cpu: bool = False  # the kernels are a processor's
    repacks: bool = False  # 4-bit weights lie as bitsandbytes' kernel for inference on AVX512-BF16 reads them
    chunks_kept: bool = False  # of the logits, of which a chunked loss widens one at a time (torchtune)
    litgpt: bool = False  # litgpt's own code of the model, and its loop
    unpacks_in_torch: bool = False  # GPTQ weights are unpacked by PyTorch's kernels and kept for backward
    padded_adapters: tuple[str, ...] = ()  # of queries, keys, values: adapted, and put between zeros
    last_layers: int = 0  # method=freeze: so many train, and of the rest only what is said beside
    fp8: bool = False  # the layers' products are computed in fp8
    attention_generation: int = 2  # of FlashAttention's kernels: see `Op`
    unpads: bool = False  # FlashAttention is handed sequences of many lengths, which the host asks for

    def product_dtype(self, kind: str) -> str:
        """Return the format in which the product of a projection of this kind is computed."""
        return "fp8" if self.fp8 and kind in ("linear", "experts") else self.compute_dtype

    @property
    def stream_bytes(self) -> int:
        """Return the bytes per element of what the residual branches add up."""
        return 4 if self.numerics.wide_stream else self.activation_bytes

    @property
    def returned_bytes(self) -> int:
        """Return the bytes per element of what projections return.

        bitsandbytes' 4-bit linears give back the width that came in, autocast or not: fp32
        where k-bit preparation has made norms and embeddings fp32.
        """
        return self.activation_bytes if self.quantized.startswith("nf4") else self.compute_bytes

    @property
    def in_last_layers(self) -> "Lowering":
        """Return the choices within the layers that train although the model does not."""
        return self._replace(weights_train=True, norms_train=True)

    def rank(self, linear: Linear, kind: str, part: str) -> int:
        """Return the LoRA rank of `linear` in the block called `part`, 0 without an adapter.

        PEFT gives the gate and up of fused experts, one tensor, the ranks of both.
        """
        if not self.lora_rank or not self.targets.means(linear, part, bare=self._holds_bare(kind)):
            return 0
        both = self.targets.doubled and kind == "experts" and last_name(linear.name) == "gate_up_proj"
        return self.lora_rank * (2 if both else 1)

    def _holds_bare(self, kind: str) -> bool:
        """Return whether a weight of this kind is a parameter of a module that is no linear."""
        return self.fused_experts and kind in ("experts", "router")

    def folds(self, linear: Linear, kind: str, part: str) -> bool:
        """Return whether an adapter is added to its weight before the product.

        So it is for what transformers 5 holds as a parameter, not a module: fused experts
        and their router.
        """
        return self._holds_bare(kind) and self.rank(linear, kind, part) > 0

    def quantizes(self, kind: str) -> bool:
        """Return whether a projection of this kind is held quantised."""
        if not self.quantized:
            return False
        if kind == "head":
            return self.litgpt and self.quantized.startswith("nf4")
        return self.experts_quantized if kind == "experts" else kind == "linear"

    def kept_input(self, width: float, *linears: Linear, part: str, kind: str = "linear") -> float:
        """Return the bytes that autograd keeps of an input of `width` that all `linears` share.

        A trained weight keeps its input; so does an adapter in the same dtype without
        dropout, and an old 4-bit linear. A frozen one keeps nothing. Where autocast
        narrows an fp32 residual stream, each projection keeps a copy of its own.
        """
        shared_adapter = not self.lora_dropout and (
            self.adapter_bytes == self.compute_bytes or (self.autocast and bool(self.quantized))
        )
        stashes = self.stashes_inputs and self.quantizes(kind)
        keepers = [
            linear
            for linear in linears
            if self.weights_train
            or stashes
            or self.folds(linear, kind, part)
            or (shared_adapter and self.rank(linear, kind, part))
        ]
        copies = len(keepers) if self.activation_bytes > self.compute_bytes else min(1, len(keepers))
        return copies * width * self.compute_bytes
