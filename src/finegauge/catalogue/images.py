"""Into what a processor turns an image or a video: tokens of the text, and patches that a tower reads.

One row per `model_type`: a rule, and what published checkpoints ask of it (their preprocessor_config.json).
The sizes that the model's own config.json states (patches, tiles, merges) are read from there. The rules are
those of transformers 5.23 (models/*/processing_*.py and image_processing_*.py, read 2026-11-23), of which
tests/unit/catalogue/image_tokens.csv holds what the real processors return.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, sqrt
from typing import Any

from finegauge.errors import FieldError, UnsupportedError, shown
from finegauge.records import NamedTuple

Config = Mapping[str, Any]
Size = tuple[int, int]  # height and width

LARGEST_SIDE, LONGEST_VIDEO = 65_536, 100_000
MOST_UNEVEN = 200  # of height and width: Qwen's processors refuse more


class Seen(NamedTuple):
    """One image or video as its model sees it."""

    tokens: int  # of the text that stand for it, as the processor counts them
    markers: int  # tokens around them and between its parts, which the processor does not count
    crops: int  # sequences that the tower reads, none of which attends to another: crops, tiles, frames ...
    patches: int  # ... of so many patches each
    joined: int = 1  # patches that become one row of the projector's output

    @property
    def length(self) -> int:
        """Return by how many tokens it makes a sequence longer."""
        return self.tokens + self.markers


class Asked(NamedTuple):
    """An image, or `frames` of a video, and what is known of its processor."""

    config: Config
    row: Config
    height: int
    width: int
    frames: int = 0
    pixels: Mapping[str, int] = {}  # at least, at most; as stated

    def vision(self, key: str, default: int = 0) -> int:
        """Return a figure of the tower; of pairs the first, for patches and tiles are square."""
        part = self.config.get("vision_config")
        value = part.get(key) if isinstance(part, Mapping) else None
        value = value[0] if isinstance(value, list | tuple) and value else value
        return _whole(f"vision_config: {key}", self.row.get(key, default) if value is None else value)

    def whole(self, key: str, default: int = 0) -> int:
        """Return a figure of the whole model."""
        value = self.config.get(key)
        return _whole(key, self.row.get(key, default) if value is None else value)

    def limit(self, name: str) -> int:
        """Return the least or most pixels: as stated, or as checkpoints of the type have it."""
        own = self.row.get(f"video_{name}") if self.frames else None
        return self.pixels.get(name) or own or self.row[name]


def image_of(
    config: Config, height: int, width: int, *, frames: int = 0, min_pixels: int = 0, max_pixels: int = 0
) -> Seen:
    """Return what the model of a parsed `config.json` sees of an image, or of so many frames of a video.

    `min_pixels` and `max_pixels` are what a processor is given, or what resizes an image beforehand for
    one that has none; 0: as published checkpoints have it.

    Raises: UnsupportedError for a `model_type` whose processor has no row, or that takes no videos;
    FieldError for a size that its processor refuses.
    """
    model_type = str(config.get("model_type"))
    part = config.get("vision_config")
    tower = part.get("model_type") if isinstance(part, Mapping) else None
    row = IMAGES.get(f"{model_type}+{tower}") or IMAGES.get(model_type)
    if row is None:
        raise UnsupportedError(
            f"model_type '{model_type}' has no rule for images; with one are {', '.join(sorted(IMAGES))}."
        )
    if not (0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE and 0 <= frames <= LONGEST_VIDEO):
        raise FieldError(f"An image of {width} x {height} is not one of 1 to {LARGEST_SIDE:,} pixels a side.")
    if "max_pixels" not in row:  # the trainer resizes it before
        most, least = max_pixels or height * width, min(min_pixels, max_pixels or min_pixels)
        scale = sqrt(min(max(height * width, least), most) / (height * width))
        height, width = max(1, int(height * scale)), max(1, int(width * scale))
    if frames and "video" not in row:
        raise UnsupportedError(f"The processor of '{model_type}' has no rule for videos here; give images.")
    stated = {"min_pixels": min_pixels, "max_pixels": max_pixels}
    rule: Callable[[Asked], Seen] = row["video" if frames else "image"]
    return rule(Asked(config, row, height, width, frames, {k: v for k, v in stated.items() if v}))


# Sizes that keep the proportions of an image, in whole patches


def fitted(height: float, width: float, step: int, least: float, most: float, frames: float = 1.0) -> Size:
    """Return both sides in multiples of `step`, their product times `frames` from `least` to `most` pixels.

    Rounded first, then made smaller or larger as a whole (`smart_resize` of Qwen2-VL; of frames Qwen3-VL's).
    """
    if max(height, width) > MOST_UNEVEN * min(height, width):
        raise FieldError(
            f"An image of {width} x {height} is more than {MOST_UNEVEN} times as long as it is wide, which "
            "its processor refuses."
        )
    if frames > 1.0 and min(height, width) < step:
        scale = max(step / height, step / width)
        height, width = int(height * scale), int(width * scale)
    of_pairs = round(frames / 2) * 2 if frames > 1.0 else 1
    high, wide = round(height / step) * step, round(width / step) * step
    if of_pairs * high * wide > most:
        beta = sqrt(frames * height * width / most)
        return max(step, floor(height / beta / step) * step), max(step, floor(width / beta / step) * step)
    if of_pairs * high * wide < least:
        beta = sqrt(least / (frames * height * width))
        return ceil(height * beta / step) * step, ceil(width * beta / step) * step
    return high, wide


def _qwen(asked: Asked) -> Seen:
    patch, merge = asked.vision("patch_size"), asked.vision("spatial_merge_size", 2)
    step, limits = patch * merge, (asked.limit("min_pixels"), asked.limit("max_pixels"))
    groups = max(1, ceil(asked.frames / asked.vision("temporal_patch_size", 2)))
    in_all = float(asked.frames) if asked.row.get("pixels_of_all_frames") and asked.frames else 1.0
    high, wide = fitted(asked.height, asked.width, step, *limits, frames=in_all)
    patches = (high // patch) * (wide // patch)
    markers = 2 if not asked.frames else 2 + (groups - 1) * asked.row.get("markers_of_frames", 0)
    if asked.frames and asked.row.get("markers_of_frames"):
        markers = groups * asked.row["markers_of_frames"]
    return Seen(groups * patches // merge**2, markers, groups, patches, merge**2)


def _pixtral(asked: Asked) -> Seen:
    """Rows of patches, each with its end; no larger than the longest edge."""
    merge = asked.whole("spatial_merge_size", 1)
    patch, edge = asked.vision("patch_size", 16), asked.vision("image_size", 1540)
    step, ratio = patch * merge, max(asked.height / edge, asked.width / edge)
    height, width = asked.height, asked.width
    if ratio > 1:
        height, width = floor(height / ratio), floor(width / ratio)
    high, wide = max(0, height - 1) // step + 1, max(0, width - 1) // step + 1
    return Seen((wide + 1) * high, 0, 1, high * wide * merge**2, merge**2)


def _pooled(asked: Asked) -> Seen:
    """Gemma 4: the largest size of so many patches, which are averaged in squares."""
    patch, pool = asked.vision("patch_size", 16), asked.vision("pooling_kernel_size", 3)
    most = asked.row["video_tokens"] if asked.frames else asked.row["tokens"]
    step, pixels = patch * pool, most * pool**2 * patch**2
    scale = sqrt(pixels / (asked.height * asked.width))
    high, wide = floor(scale * asked.height / step) * step, floor(scale * asked.width / step) * step
    if not high and not wide:
        raise FieldError(f"An image of {asked.width} x {asked.height} has no patch in its processor.")
    if not high:
        high, wide = step, min(asked.width // asked.height * step, most * step)
    elif not wide:
        high, wide = min(asked.height // asked.width * step, most * step), step
    patches, frames = (high // patch) * (wide // patch), max(1, asked.frames)
    # around each picture its beginning and end; before a frame of a video its time, 'mm:ss' and a blank
    markers = frames * (2 + (6 if asked.frames else 0)) + max(0, frames - 1)
    return Seen(frames * (patches // pool**2), markers, frames, patches, pool**2)


def _kimi(asked: Asked) -> Seen:
    """Kimi K2.5: never larger than it is, filled up to whole merges of patches."""
    patch, merge, side = asked.vision("patch_size", 14), asked.vision("merge_kernel_size", 2), 512
    number = max(1, asked.height // patch) * max(1, asked.width // patch)
    sides = (
        asked.row["patches"] / number,
        (side * patch / asked.height) ** 2,
        (side * patch / asked.width) ** 2,
    )
    scale = min(1.0, sqrt(sides[0]), side * patch / asked.height, side * patch / asked.width)
    high, wide = max(1, int(asked.height * scale)), max(1, int(asked.width * scale))
    step = patch * merge
    rows, columns = ceil(high / step), ceil(wide / step)
    return Seen(rows * columns, 2, 1, rows * columns * merge**2, merge**2)


# One size for all


def _square(asked: Asked) -> Seen:
    """As many tokens as the tower has patches, or as the model says; frames likewise, one after the other."""
    side = asked.vision("image_size") // asked.vision("patch_size")
    tokens = asked.whole("mm_tokens_per_image", side**2)
    frames = max(1, asked.frames)
    markers, joined = frames * asked.row.get("markers", 0), max(1, side**2 // tokens)
    return Seen(frames * tokens, markers, frames, side**2, joined)


# Tiles, beside the whole image in one


def _tiles(asked: Asked) -> Seen:
    """InternVL: the grid of tiles of the nearest proportions; of equal ones the larger, if not too large."""
    side = asked.vision("image_size", 448)
    (patch, ratio) = (asked.vision("patch_size", 14), asked.row["joined"])
    number = (side // patch) ** 2
    if asked.frames:  # each a picture of its own, behind 'Frame1: ' and with an end of line
        tokens = asked.frames * (number // ratio)
        return Seen(tokens, asked.frames * (2 + 4), asked.frames, number, ratio)
    aspect, area, best, nearest = asked.width / asked.height, asked.width * asked.height, (1, 1), float("inf")
    for wide, high in sorted(_grids(asked.row["tiles"]), key=lambda grid: grid[0] * grid[1]):
        away = abs(aspect - wide / high)
        if away < nearest or (away == nearest and area > 0.5 * side * side * wide * high):
            best, nearest = (wide, high), away
    tiles = best[0] * best[1]
    crops = tiles + 1 if tiles > 1 else 1
    return Seen(2 + crops * (number // ratio), 0, crops, number, ratio)


def _canvas(asked: Asked) -> Size:
    """Return the (rows, columns) of tiles onto which an image fits with the least scaling, and least area."""
    side = asked.vision("image_size")
    found: list[tuple[float, int, Size]] = []
    for rows, columns in _grids(asked.vision("max_num_tiles", 16)):
        scale = min(rows * side / asked.height, columns * side / asked.width)
        found.append((scale, rows * columns, (rows, columns)))
    larger = [scale for scale, *_ in found if scale >= 1]
    chosen = min(larger) if larger else max(scale for scale, *_ in found)
    return min((area, grid) for scale, area, grid in found if scale == chosen)[1]


def _llama4(asked: Asked) -> Seen:
    rows, columns = _canvas(asked)
    side = (asked.vision("image_size", 336) // asked.vision("patch_size", 14)) ** 2
    joined = asked.row["joined"]
    crops = rows * columns + 1 if rows * columns > 1 else 1
    between = rows * columns if crops > 1 else 0  # columns - 1 between the tiles of a row, one behind it
    return Seen(crops * (side // joined), 3 + between, crops, side, joined)


def _mllama(asked: Asked) -> Seen:
    """Llama 3.2 Vision: one token; the text's cross-attention reads the tower's output of all tiles."""
    most = asked.vision("max_num_tiles", 4)  # empty ones are computed too
    number = (asked.vision("image_size") // asked.vision("patch_size")) ** 2
    return Seen(1, 0, 1, most * number)


def _idefics(asked: Asked) -> Seen:
    """Idefics 3 and SmolVLM: the longer side made four tiles long, cut into tiles with a marker each."""
    side, merge = asked.vision("image_size"), asked.whole("scale_factor")
    number = (side // asked.vision("patch_size")) ** 2
    tokens, longest = number // merge**2, asked.row["tiles"] * side
    if asked.frames:  # a marker before and behind, what it is, its time ('Frame from 00:01:')
        return Seen(asked.frames * tokens, asked.frames * (3 + 8), asked.frames, number, merge**2)
    aspect = asked.width / asked.height
    high, wide = longest, longest
    if asked.width >= asked.height:
        high = int(wide / aspect) + int(wide / aspect) % 2
    else:
        wide = int(high * aspect) + int(high * aspect) % 2
    high, wide = _no_longer(max(1, high), max(1, wide), 4096)
    rows, columns = ceil(high / side), ceil(wide / side)
    split = rows * columns > 1
    in_rows = rows * (columns * (tokens + 2) + 1) if split else 0
    return Seen(tokens + 3 + in_rows, 0, rows * columns + 1 if split else 1, number, merge**2)


def _no_longer(high: int, wide: int, most: int) -> Size:
    aspect = wide / high
    if wide >= high and wide > most:
        high, wide = int(most / aspect), most
    elif high > wide and high > most:
        high, wide = most, int(most * aspect)
    return max(1, high), max(1, wide)


def _any_resolution(asked: Asked) -> Seen:
    """LLaVA-NeXT and OneVision: crops of the best of some sizes, less what pads them, each row with its end.

    `anyres_max_9`: beyond so many crops' worth of tokens they are interpolated.
    """
    side, patch = asked.vision("image_size"), asked.vision("patch_size")
    length = side // patch
    if asked.frames:  # halved in both directions; one end for all
        pooled = ceil(length / 2) ** 2
        return Seen(asked.frames * pooled + 1, 0, asked.frames, length**2)
    listed = asked.config.get("image_grid_pinpoints")
    listed = asked.row["sizes"] if listed is None else listed
    high, wide = _best_of(listed, asked.height, asked.width)
    rows, columns = length * (high // side), length * (wide // side)
    if asked.width / asked.height > columns / rows:
        kept = int(round(asked.height * (columns / asked.width), 7))
        rows -= (rows - kept) // 2 * 2
    else:
        kept = int(round(asked.width * (rows / asked.height), 7))
        columns -= (columns - kept) // 2 * 2
    crops = (high // side) * (wide // side) + 1
    if most := asked.row.get("most_crops"):
        ratio = sqrt(rows * columns / (most * length**2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
    return Seen(rows * columns + rows + length**2, 0, crops, length**2)


def _best_of(sizes: Any, height: int, width: int) -> Size:
    """Return the size that shows the most pixels of an image, and of those the one that wastes the fewest."""
    best, most, least = (0, 0), 0, float("inf")
    for size in sizes if isinstance(sizes, Sequence) else ():
        high, wide = (_whole("image_grid_pinpoints", value) for value in size)
        scale = min(wide / width, high / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        wasted = high * wide - shown
        if shown > most or (shown == most and wasted < least):
            best, most, least = (high, wide), shown, wasted
    if best == (0, 0):
        raise FieldError(f"image_grid_pinpoints has no size for an image of {width} x {height}.")
    return best


def _grids(most: int) -> Iterable[Size]:
    for first in range(1, most + 1):
        for second in range(1, most // first + 1):
            yield first, second


def _whole(key: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10**8:
        return value
    raise FieldError(f"{key}={shown(value)} is not a whole number above zero.")


TILES_OF_384 = [[384 * high, 384 * wide] for high in range(1, 7) for wide in range(1, 7)]
NEXT_SIZES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
QWEN_14 = {
    "image": _qwen, "video": _qwen, "patch_size": 14, "min_pixels": 56**2, "max_pixels": 16384 * 28**2,
    "video_min_pixels": 128 * 28**2, "video_max_pixels": 768 * 28**2,
}  # fmt: skip
QWEN_16 = {
    "image": _qwen, "video": _qwen, "patch_size": 16, "min_pixels": 256**2, "max_pixels": 4096**2,
    "video_min_pixels": 64**2, "video_max_pixels": 24576 * 32**2, "pixels_of_all_frames": True,
    # '<', seconds, '.', tenths, ' seconds', '>', then where the frame begins and ends
    "markers_of_frames": 8,
}  # fmt: skip
GLM = {  # whose pixels are of two frames: a picture is doubled
    "image": _qwen,
    "patch_size": 14,
    "min_pixels": 112**2 // 2,
    "max_pixels": 15000 * 28**2 // 2,
}
LLAVA = {"image": _square, "image_size": 336, "patch_size": 14}
NEXT = {"image": _any_resolution, "sizes": NEXT_SIZES, "image_size": 336, "patch_size": 14}
IDEFICS = {
    "image": _idefics,
    "video": _idefics,
    "tiles": 4,
    "scale_factor": 2,
    "image_size": 364,
    "patch_size": 14,
}

IMAGES: dict[str, dict[str, Any]] = {
    "qwen2_vl": QWEN_14,
    "qwen2_5_vl": QWEN_14,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), QWEN_16),
    "internvl": {
        "image": _tiles, "video": _tiles, "tiles": 12, "joined": 4, "image_size": 448, "patch_size": 14,
    },
    "llava": LLAVA,
    "llava+pixtral": {"image": _pixtral, "image_size": 1024},
    "llava_next": NEXT,
    "llava_onevision": {
        "image": _any_resolution, "video": _any_resolution, "sizes": TILES_OF_384, "most_crops": 9,
        "image_size": 384, "patch_size": 14,
    },
    # two ends of line before and behind, where the image begins and ends
    "gemma3": {
        "image": _square, "image_size": 896, "patch_size": 14, "mm_tokens_per_image": 256, "markers": 4,
    },
    "gemma4": {"image": _pooled, "video": _pooled, "tokens": 280, "video_tokens": 70},
    "llama4": {"image": _llama4, "joined": 4, "image_size": 336, "patch_size": 14, "max_num_tiles": 16},
    "mistral3": {"image": _pixtral, "image_size": 1540, "patch_size": 14, "spatial_merge_size": 2},
    "idefics3": IDEFICS,
    "smolvlm": IDEFICS,
    "paligemma": {"image": _square, "image_size": 224, "patch_size": 14},
    "mllama": {"image": _mllama, "image_size": 560, "patch_size": 14, "max_num_tiles": 4},
    **dict.fromkeys(("glm4v", "glm46v", "glm4v_moe"), GLM),
    "kimi_k25": {"image": _kimi, "patches": 16384},
}  # fmt: skip
