"""How many parameters a vision tower and its projector hold.

Fine-tuning on text does not run them, so each tower is one number: the sum over its
tensors as the transformers 5.23 classes build them, whose defaults stand here too.
"""

from finegauge.model.blocks import Tensor
from finegauge.model.families.parts import divided
from finegauge.model.families.reading import Figures

SIGLIP = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_channels": 3,
    "image_size": 224, "patch_size": 16, "vision_use_head": True, "num_attention_heads": 12,
}  # fmt: skip
QWEN3_VL_VISION = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584,
    "num_position_embeddings": 2304, "deepstack_visual_indexes": (8, 16, 24), "num_heads": 16,
}  # fmt: skip
KIMI_VISION = {
    "patch_size": 14, "pos_emb_height": 64, "pos_emb_width": 64, "num_hidden_layers": 27,
    "hidden_size": 1152, "intermediate_size": 4304, "merge_kernel_size": (2, 2), "num_attention_heads": 16,
}  # fmt: skip
LLAMA4_VISION = {
    "hidden_size": 768, "num_hidden_layers": 34, "num_channels": 3, "intermediate_size": 5632,
    "vision_output_dim": 7680, "image_size": 448, "patch_size": 14, "num_attention_heads": 16,
    "projector_input_dim": 4096, "projector_output_dim": 4096,
}  # fmt: skip
MLLAMA_VISION = {
    "hidden_size": 1280, "num_hidden_layers": 32, "num_global_layers": 8, "num_channels": 3,
    "intermediate_size": 5120, "vision_output_dim": 7680, "image_size": 448, "patch_size": 14,
    "max_num_tiles": 4, "attention_heads": 16,
}  # fmt: skip


QWEN2_VL_VISION = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "in_channels": 3,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
QWEN2_5_VL_VISION = {
    "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "in_channels": 3,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584,
}  # fmt: skip
PIXTRAL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_channels": 3, "patch_size": 16,
}  # fmt: skip
MISTRAL3_VISION = {**PIXTRAL, "patch_size": 14, "head_dim": 64}
CLIP = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_channels": 3, "image_size": 336, "patch_size": 14,
}  # fmt: skip


def tower(name: str, num_parameters: int) -> tuple[Tensor, ...]:
    """Return a tower as one tensor outside the text decoder."""
    return (Tensor(name, (num_parameters,), "linear"),)


def siglip(f: Figures, text_hidden: int) -> int:
    """Return the parameters of a SigLIP tower and of Gemma 3's projector behind it."""
    hidden, size, patch = _width(f, "num_attention_heads"), f.size("intermediate_size"), f.size("patch_size")
    embeddings = _linear(f.size("num_channels") * patch**2, hidden)
    embeddings += (f.size("image_size") // patch) ** 2 * hidden
    total = embeddings + f.num_layers() * _encoder_layer(hidden, size) + _norm(hidden)
    if f.flag("vision_use_head"):
        probe = hidden + _linear(hidden, 3 * hidden) + _linear(hidden, hidden)
        total += probe + _norm(hidden) + _mlp(hidden, size)
    return total + hidden * text_hidden + hidden


def qwen3_vl(f: Figures, *, deepstack: bool) -> int:
    """Return the parameters of Qwen3-VL's tower; Qwen3.5's has no `deepstack` mergers."""
    hidden, size, merged = (
        _width(f, "num_heads"),
        f.size("intermediate_size"),
        f.size("spatial_merge_size") ** 2,
    )
    wide = hidden * merged
    merger = _linear(wide, wide) + _linear(wide, f.size("out_hidden_size"))
    total = _linear(_pixels(f), hidden) + f.size("num_position_embeddings") * hidden
    total += f.num_layers("depth") * _encoder_layer(hidden, size) + merger + _norm(hidden)
    if deepstack:
        total += len(f.items("deepstack_visual_indexes") or ()) * (merger + _norm(wide))
    return total


def qwen2_vl(f: Figures) -> int:
    """Return the parameters of Qwen2-VL's tower."""
    hidden = f.size("embed_dim")
    divided(f, "vision_config: embed_dim", hidden, "num_heads", f.size("num_heads"))
    wide = hidden * f.size("spatial_merge_size") ** 2
    merger = _norm(hidden) + _linear(wide, wide) + _linear(wide, f.size("hidden_size"))
    size = int(f.ratio("mlp_ratio") * hidden)
    return _pixels(f) * hidden + f.num_layers("depth") * _encoder_layer(hidden, size) + merger


def qwen2_5_vl(f: Figures) -> int:
    """Return the parameters of Qwen2.5-VL's tower: RMS norms, gated feed-forwards with biases."""
    hidden, size = _width(f, "num_heads"), f.size("intermediate_size")
    wide = hidden * f.size("spatial_merge_size") ** 2
    merger = hidden + _linear(wide, wide) + _linear(wide, f.size("out_hidden_size"))
    feed = 2 * _linear(hidden, size) + _linear(size, hidden)
    block = 4 * _linear(hidden, hidden) + feed + 2 * hidden
    return _pixels(f) * hidden + f.num_layers("depth") * block + merger


def pixtral(f: Figures) -> int:
    """Return the parameters of a Pixtral tower: Llama's layers over patches."""
    hidden, size = _width(f, "num_attention_heads"), f.size("intermediate_size")
    block = 4 * hidden * hidden + 3 * hidden * size + 2 * hidden
    return f.size("num_channels") * f.size("patch_size") ** 2 * hidden + hidden + f.num_layers() * block


def clip(f: Figures) -> int:
    """Return the parameters of a CLIP tower."""
    hidden, size, patch = _width(f, "num_attention_heads"), f.size("intermediate_size"), f.size("patch_size")
    rows = (f.size("image_size") // patch) ** 2 + 1
    embeddings = hidden + f.size("num_channels") * patch**2 * hidden + rows * hidden
    return embeddings + f.num_layers() * _encoder_layer(hidden, size) + 2 * _norm(hidden)


def projector(inputs: int, outputs: int, *, bias: bool) -> int:
    """Return the parameters of two projections into the decoder's width."""
    return inputs * outputs + outputs * outputs + (2 * outputs if bias else 0)


def _pixels(f: Figures) -> int:
    """Return the values of one patch of a Qwen-VL tower."""
    return f.size("in_channels") * f.size("temporal_patch_size") * f.size("patch_size") ** 2


def kimi(f: Figures, projection_hidden: int, text_hidden: int) -> int:
    """Return the parameters of Kimi K2.5's tower and projector."""
    hidden, height, width = (
        _width(f, "num_attention_heads"),
        f.size("pos_emb_height"),
        f.size("pos_emb_width"),
    )
    total = _linear(3 * f.size("patch_size") ** 2, hidden) + height * width * hidden
    total += f.num_layers() * _encoder_layer(hidden, f.size("intermediate_size")) + _norm(hidden)
    rows, columns = f.sizes("merge_kernel_size", 2)
    wide = hidden * rows * columns
    return total + _norm(projection_hidden) + _linear(wide, wide) + _linear(wide, text_hidden)


def llama4(f: Figures, text_hidden: int) -> int:
    """Return the parameters of Llama 4's tower, adapter and projector."""
    hidden, size, patch = _width(f, "num_attention_heads"), f.size("intermediate_size"), f.size("patch_size")
    patches = (f.size("image_size") // patch) ** 2 + 1
    total = hidden + patches * hidden + f.size("num_channels") * patch**2 * hidden + 2 * _norm(hidden)
    total += f.num_layers() * _encoder_layer(hidden, size)
    out = f.size("projector_output_dim")
    return (
        total + size * f.size("projector_input_dim") + out * out + f.size("vision_output_dim") * text_hidden
    )


def mllama(f: Figures, text_hidden: int) -> int:
    """Return the parameters of Llama 3.2 Vision's tower, with its gated global layers, and projector."""
    hidden, patch, tiles = _width(f, "attention_heads"), f.size("patch_size"), f.size("max_num_tiles")
    patches = (f.size("image_size") // patch) ** 2 + 1
    ratios = f.items("supported_aspect_ratios")
    rows = (8 if ratios is None else len(ratios)) + 1
    total = hidden + f.size("num_channels") * patch**2 * hidden + 2 * _norm(hidden)
    total += 1 + patches * hidden + rows * tiles * patches * hidden + 2 * (1 + rows * tiles * hidden)
    block = 4 * hidden * hidden + _mlp(hidden, f.size("intermediate_size")) + 2 * _norm(hidden)
    layers, gated = f.num_layers(), f.size("num_global_layers")
    total += (layers + gated) * block + 2 * gated
    return total + _linear(f.size("vision_output_dim"), text_hidden)


def _width(f: Figures, heads: str) -> int:
    """Return the tower's channels, which its attention heads must divide."""
    hidden, num_heads = f.size("hidden_size"), f.size(heads)
    divided(f, "vision_config: hidden_size", hidden, heads, num_heads)
    return hidden


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _norm(size: int) -> int:
    return 2 * size


def _mlp(hidden: int, size: int) -> int:
    return _linear(hidden, size) + _linear(size, hidden)


def _encoder_layer(hidden: int, size: int) -> int:
    """Return the parameters of a biased attention, a biased feed-forward and their two norms."""
    return 4 * _linear(hidden, hidden) + _mlp(hidden, size) + 2 * _norm(hidden)
