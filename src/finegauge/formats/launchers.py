"""What launchers, schedulers and shells are told: processes, nodes, accelerate's options, comments, tests."""

import ast
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from finegauge.catalogue.gpus import cloud_machine, known_gpu
from finegauge.documents import parse_yaml, read_text
from finegauge.errors import FileFormatError, shown
from finegauge.formats.launcher_files import STAGE, find_inside
from finegauge.formats.sheet import MAX_TEXT, mapping_in

CONFIGS = (".yaml", ".yml", ".json", ".toml")
SHELL_ENDINGS = (".sh", ".bash", ".zsh", ".fish", ".slurm", ".sbatch")
SCRIPT_ENDINGS = (".py", *SHELL_ENDINGS)
LAUNCHERS = (
    *("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch"),
    "accelerate.commands.launch",
)
_READ = (*CONFIGS, *SCRIPT_ENDINGS, ".env", ".env.local", ".env.train", "Makefile")
_SET = re.compile(
    r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w{0,99})[ \t]*=[ \t]*"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\n]*?)[ \t]*(?:[ \t]#.*)?$"
)
_SUM = re.compile(r"[\d\s()+*/%-]{1,200}")
_MAX_ENV = 100_000  # characters
_TESTS = ("[", "[[", "test", "]", "]]", "!")
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
ALLOC_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the newer name first
# where a script, or a notebook of a cloud, starts
WORKING = re.compile(r"^(\./|/content/|/kaggle/working/)")
UNSET = re.compile(r"\$[\w({@]|`")
# Options of launchers that programs take too, for the launcher that they start.
OF_LAUNCHERS = (
    *("num_processes", "num_machines", "nproc_per_node", "nnodes", "accelerate_config", "launcher"),
    *("node_rank", "master_addr", "master_port", "local_rank", "machine_rank", "main_process_ip"),
    *("standalone", "rdzv_endpoint", "rdzv_backend"),
)
# Keys of files, logs and learning: neither memory nor time hangs on what they hold.
OF_FILES = re.compile(
    r"(^|[._])(out\w*|save\w*|log\w*|run_?name|\w+_dir|wandb\w*|experiment\w*|project\w*|data_path|lr\w*"
    r"|(train|val\w*|eval\w*|test|data)_files?|rdzv_\w+|master_\w+|node_rank|report_to|(push_to_)?hub\w*|seed"
    r"|learning_rate|warmup_\w+|weight_decay|beta|temperature|top_p|dataloader_\w+|remove_unused_columns"
    r"|custom_reward_function\.\w+)$"
)
_GPUS_PER_NODE = ("nproc_per_node", "num_gpus", "nproc", "ntasks_per_node", "gpus_per_node")
_ACCELERATE = ("num_processes", "num_machines", "mixed_precision")
_DIVIDES = {
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "use_deepspeed": "DEEPSPEED",
    "zero_stage": "DEEPSPEED",
}
_OF_SECTIONS = {
    "fsdp_config": ("fsdp_",),
    "deepspeed_config": ("zero_stage", "offload_", "deepspeed_config_file", "gradient_accumulation_steps"),
    "megatron_lm_config": ("megatron_lm_",),
    "dynamo_config": ("dynamo_",),
}

_BINARY: Mapping[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

# How many devices a list has: $(echo $CUDA_VISIBLE_DEVICES | tr ',' '\n' | wc -l)
_LISTED = re.compile(
    r"""\s*echo\s+"?(\$\{?\w{1,64}\}?)"?\s*\|\s*(?:tr\s+["']?,["']?\s+\S+\s*\|\s*wc\s+-[lw]"""
    r"""|awk\s+-F\s*["']?,["']?\s+["']\{\s*print\s+NF;?\s*\}["'])\s*"""
)
# The folder of the script itself, and of another: $(dirname "$0"), $(cd "$HERE/.." && pwd)
_HERE = re.compile(r"""\s*dirname\s+(?:--\s+)?\\?"?\$\{?(?:0|BASH_SOURCE)[^()]*""")
_ENTERED = re.compile(
    r"""\s*cd\s+(?:--\s+)?(\S.{0,199}?)\s*(?:&?>\s*/dev/null\s*(?:2>&1\s*)?)?(?:&&|;)\s*pwd(?:\s+-P)?\s*"""
)
# A text whose blanks are put in order: $(echo "$ARGS" | tr '\n' ' ' | sed 's/  */ /g')
_TIDIED = re.compile(
    r"""\s*echo\s+(?:-\w\s+)?("?\$\{?\w{1,64}\}?"?)\s*(?:\|\s*(?:tr|sed|xargs)\b[-\s\\'"/+*nrsg]*)*"""
)
# $([ "$LORA" = true ] && echo "--use_lora" || echo "")
_CHOSEN = re.compile(
    r"\s*(\[\[? .{1,200}? \]\]?)\s*&&\s*echo\s+([^|&]{1,200})(?:\|\|\s*echo\s*([^|&]{0,200}))?"
)
_PRINTS = (_ENTERED, _TIDIED, _LISTED, _CHOSEN)
_REPLACED = re.compile(r"s([/|#,])(.{1,200}?)(?<!\\)\1(.*?)\1g?")  # sed's: one text by another


class Place:
    """Where a command is started, and what it may read."""

    def __init__(
        self, file: str, name: str, files: Mapping[str, str] = {}, *, trusted: bool = False, depth: int = 0
    ) -> None:
        """Begin with `files` that are written on the way; `trusted`: the user names the files."""
        self.file, self.name = file, name
        self.files = {WORKING.sub("", one): text for one, text in files.items()}
        self.trusted, self.depth = trusted, depth
        self.mounts: dict[str, str] = {}  # folders of the machine that runs it: where they lie here

    def text(self, named: str) -> tuple[str, str] | None:
        """Return (text, path) of a file, None where it is not there or not inside the project."""
        written = self.files.get(named) or self.files.get(WORKING.sub("", named))
        if written is not None:
            return written, os.path.join(os.path.dirname(self.file), os.path.basename(named))
        for there, here in self.mounts.items():
            if named.startswith(there) and (there or not os.path.isabs(named)):
                found = find_inside(here + named[len(there) :], self.file, _READ)[0]
                if found is not None:
                    return read_text(found), found
        path: str | None = os.path.expanduser(named) if self.trusted else None
        if path is None or not os.path.isfile(path):
            path = find_inside(named, self.file, _READ)[0]
        return None if path is None else (read_text(path), path)

    def beside(self, named: Any) -> str | None:
        """Return the text of a file of keys that a script names by a path from its folder, if it is there."""
        is_near = isinstance(named, str) and named.endswith(CONFIGS) and not os.path.isabs(named)
        found = self.text(named) if is_near else None
        return found and found[0]

    def filled(self, keys: Mapping[str, Any], unset: Sequence[str]) -> dict[str, Any]:
        """Return `keys` less those `unset`, with what is in DeepSpeed's file where the script writes it."""
        known = {key: value for key, value in keys.items() if key not in unset}
        named = known.get("deepspeed")
        text = self.files.get(WORKING.sub("", named)) if isinstance(named, str) else None
        written = parse_yaml(text, str(named)) if text else None
        return {**known, "deepspeed": written} if isinstance(written, Mapping) else known


def options_of(words: Iterable[str], *, hydra: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return {key: value} of --key value, --key=value, --key a b, --key, key=value; and the other words."""
    found: dict[str, list[str]] = {}
    loose: list[str] = []
    key, doubled = "", False
    for word in words:
        is_option = re.match(r"--?[A-Za-z_]", word) is not None
        if is_option:
            key, equals, value = word.lstrip("-").partition("=")
            key = key.replace("-", "_")
            found[key], doubled = ([value] if equals else []), bool(equals)
        elif hydra and (assigned := re.fullmatch(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=(.*)", word, re.DOTALL)):
            found[assigned[1].replace("/", ".")], key = [assigned[2]], ""
        elif key and not doubled and not (hydra and found[key]):
            if not (found[key] and word.startswith("$")):  # more options, of a variable that is not set
                found[key].append(word)
        elif not word.startswith("~"):
            loose.append(word)
    return {key: True if not v else v[0] if len(v) == 1 else v for key, v in found.items()}, loose


def batch_options(text: str) -> dict[str, Any]:
    """Return the options that a script states to Slurm in its comments."""
    words: list[str] = []
    for found in re.finditer(r"^#SBATCH\s+(\S.{0,300})$", text[:100_000], re.MULTILINE):
        words += found[1].partition(" #")[0].split()
    return options_of(words)[0]


def of_slurm(batch: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that Slurm sets of what a script asks for."""
    tasks = whole_of(batch.get("ntasks_per_node"))
    nodes, each = whole_of(batch.get("nodes") or batch.get("N")), _of_node(batch)
    told = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), each),
        "SLURM_GPUS": whole_of(str(batch.get("gpus")).rpartition(":")[2]),
        **{"SLURM_NTASKS_PER_NODE": tasks, "SLURM_NTASKS": nodes and tasks and nodes * tasks},
    }
    return {name: str(value) for name, value in told.items() if value}


def _of_node(batch: Mapping[str, Any]) -> int | None:
    """Return how many GPUs of a node a script asks Slurm for."""
    gres = re.search(r":(\d{1,3})(?:\(|$)", str(batch.get("gres", "")))
    return whole_of(str(batch.get("gpus_per_node")).rpartition(":")[2]) or (int(gres[1]) if gres else None)


def machine(
    launcher: Sequence[str],
    own: Mapping[str, Any],
    variables: Mapping[str, str],
    batch: Mapping[str, Any],
    place: Place,
    warnings: list[str],
    *,
    all_gpus: bool,
    placed: bool,
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Return the fields that the launcher states, and what accelerate is told.

    What starts its own workers (`placed`) has as many GPUs as its own keys say, unless torchrun starts it.
    """
    told = {**own, **options_of(launcher)[0]}
    accelerate: Mapping[str, Any] | None = None
    named = told.get("config_file") or told.get("accelerate_config")
    if isinstance(named, str):
        found = place.text(named)
        if found is not None:
            keys = parse_yaml(found[0], os.path.basename(named))
            accelerate = keys if isinstance(keys, Mapping) else None
        elif UNSET.search(named) is None:
            accelerate = _named_after(named, place)
            warnings.append(f"{shown(named)} is not here: how the model is divided is taken from its name.")
    if isinstance(accelerate, Mapping) or any(map(told.get, _DIVIDES)):
        accelerate = _overridden(accelerate or {}, told)
    elif "mixed_precision" in told and not all_gpus:
        accelerate = {"distributed_type": "MULTI_GPU", "mixed_precision": told["mixed_precision"]}
    gpus, nodes = _gpus(told, variables, batch, launcher, all_gpus=all_gpus)
    placed &= not _launches(launcher)
    alone = not (all_gpus or accelerate or _launches(launcher) or "ray" in launcher or placed)
    warnings += _layers_apart(_visible(variables) if alone else 0, gpus or 1)
    if gpus is None and isinstance(accelerate, Mapping):
        gpus = whole_of(str(accelerate.get("num_processes")))
    each_node = nodes if all_gpus or _launches(launcher) else None
    warnings += () if gpus else _unset(told, each_node)
    gpus = None if placed else gpus or each_node
    block = of_hub(str(told.get("flavor"))) | ({"num_gpus": gpus} if gpus else {}) | _card(batch)
    if gpus and nodes and nodes > 1 and gpus % nodes == 0:
        block["num_nodes"] = nodes
    allocator = next((variables[name] for name in ALLOC_VARIABLES if variables.get(name)), "")
    if allocator and not UNSET.search(allocator):
        block["cuda_alloc_conf"] = allocator
    return block, accelerate


def _unset(told: Mapping[str, Any], nodes: int | None) -> Iterator[str]:
    """Yield a warning where the number of GPUs is a variable that nothing sets, or of nodes alone."""
    given = [told.get(key) for key in ("nnodes", "np", *_GPUS_PER_NODE, *_ACCELERATE)]
    named = [str(one[0] if isinstance(one, list) else one) for one in given]
    if unset := [value for value in named if UNSET.search(value)]:
        yield f"How many GPUs it starts on hangs on {unset[-1]}, which is not told: num_gpus=N says."
    elif told.get("multi_gpu") or {"gpu", "auto"} & {*named}:
        yield "It starts on all GPUs of a machine, whose number is not told: taken as 1; num_gpus=N says."
    elif nodes and nodes > 1:
        yield f"How many GPUs each of {nodes} nodes has is not told: taken as 1; num_gpus=N, of all, says."


def _layers_apart(seen: int, processes: int) -> list[str]:
    if seen <= processes:
        return []
    return [
        f"CUDA_VISIBLE_DEVICES names {seen} GPUs for {processes} process{'es' if processes > 1 else ''}: a "
        "model divided among GPUs by layers (device_map) is not modelled; each process is taken to use one."
    ]


def _named_after(named: str, place: Place) -> dict[str, Any]:
    """Return accelerate's keys that the name of its file tells: deepspeed_zero3.yaml, fsdp.yaml."""
    name = os.path.basename(named).lower()
    stage = re.search(STAGE, name)
    if stage is not None and stage[1] != "0":
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": int(stage[1])}}
    if name == "single_gpu":
        return {"distributed_type": "NO", "num_processes": 1}
    if "fsdp" in name or "multi_gpu" in name or "ddp" in name:
        offloads = {"fsdp_offload_params": True} if "offload" in name else {}
        return {"distributed_type": "FSDP" if "fsdp" in name else "MULTI_GPU", "fsdp_config": offloads}
    raise FileFormatError(
        f"{place.name} names accelerate's file {shown(named)}, which is not here; it says how many GPUs "
        "there are and how the model is divided. Add it, or take it off and state num_gpus=… and sharding=…."
    )


def _overridden(keys: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of accelerate's file, if any, under the options of its launcher."""
    asked = next((kind for option, kind in _DIVIDES.items() if told.get(option)), None)
    found = {**keys, **{key: told[key] for key in _ACCELERATE if key in told}}
    for section, theirs in _OF_SECTIONS.items():
        options = {key: value for key, value in told.items() if key.startswith(theirs)}
        if asked or options:
            found[section] = {**mapping_in(keys, section), **options}
    return {**found, "distributed_type": asked} if asked else found


def _visible(variables: Mapping[str, str]) -> int:
    """Return how many GPUs the environment lets a program see; 0 where it does not tell."""
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    return 0 if "$" in visible else sum(1 for one in visible.split(",") if one.strip())


def _launches(launcher: Sequence[str]) -> bool:
    return any(word.rpartition("/")[2] in LAUNCHERS for word in launcher)


def whole_of(value: Any) -> int | None:
    """Return a whole number of a word: of "1:4" the first."""
    text = str(value[0] if isinstance(value, list) and value else value).partition(":")[0]
    return int(text) if text.isdecimal() and 0 < len(text) < 7 else None


def _card(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return as a field the GPU that Slurm is asked for by a name of the catalogue: --gres=gpu:a100:4."""
    for key in ("gres", "gpus_per_node", "gpus", "G", "constraint", "C"):
        for word in re.split(r"[:=&|,]", str(batch.get(key, ""))):
            if found := known_card(word):
                return found
    return {}


def of_hub(machine: str) -> dict[str, Any]:
    """Return as fields the GPUs of a machine of the Hub: a10g-large, l4x4, a100-large."""
    found = re.fullmatch(r"([a-z]+\d+[a-z]*?)(?:-\w+?)?(?:x([1-8]))?", machine)
    card = known_card("a100-80gb" if found[1] == "a100" else found[1]) if found else {}
    return {**card, "num_gpus": int((found and found[2]) or 1)} if card else {}


def known_card(word: str) -> dict[str, Any]:
    """Return as a field the GPU that a word names, or a cloud's machine, nothing where it names none."""
    word = word.removeprefix("nvidiaTesla")  # as Kaggle has it
    named = (
        not word.isdecimal() and word.casefold() not in ("gpu", "", "none") and known_gpu(word) is not None
    )
    rented = None if named else cloud_machine(word)
    return {"gpu": word} if named else {"gpu": rented.gpu} if rented else {}


def _gpus(
    told: Mapping[str, Any],
    variables: Mapping[str, str],
    batch: Mapping[str, Any],
    launcher: Sequence[str],
    *,
    all_gpus: bool,
) -> tuple[int | None, int | None]:
    """Return (GPUs of all nodes, nodes), as far as launcher, environment or Slurm tell."""
    nodes = next(
        (n for n in map(whole_of, (
            *(told.get(key) for key in ("nnodes", "num_machines", "num_nodes", "nodes", "N")),
            *(variables.get(key) for key in ("NNODES", "NUM_NODES", "SLURM_NNODES")),
            *(batch.get(key) for key in ("nodes", "N")),
        )) if n), None)  # fmt: skip
    handed, of_each = "--" in launcher, whole_of(told.get("gpus"))  # what a script is told that submits
    if handed and of_each and nodes:
        return of_each * nodes, nodes
    if total := whole_of(told.get("num_processes")):
        return total, nodes
    if listed := re.findall(r"[\w.-]+:([\d,]+)", str(told.get("include", ""))):
        return sum(len(part.split(",")) for part in listed), len(listed)
    each = next((n for n in (whole_of(told[key]) for key in _GPUS_PER_NODE if key in told) if n), None)
    each = each or whole_of(variables.get("NPROC_PER_NODE"))
    if not each and re.fullmatch(r"\d+(,\d+)*", listed_ := str(told.get("gpu_ids", ""))):  # accelerate's
        each = listed_.count(",") + 1
    seen, launches = _visible(variables), _launches(launcher)
    if not each and seen and (seen == 1 or all_gpus or launches):
        each = seen
    if not each and ("srun" in launcher or batch) and not (launches and "nproc_per_node" in told):
        tasks = whole_of(batch.get("ntasks_per_node"))
        of_node = _of_node(batch)
        each = of_node if launches else (of_node or tasks) if all_gpus else tasks or of_node
    if not each and (ranks := whole_of(told.get("np") or told.get("n"))):
        return ranks, nodes
    return (each * (nodes or 1) if each else None), nodes


def until_pipe(words: Sequence[str]) -> list[str]:
    """Return the words up to an operator of the shell that was handed on as a word."""
    found: list[str] = []
    for word in words:
        if word in ("&", "&&", "||", "|", ";", ">", ">>", "2>&1"):
            break
        found.append(word)
    return found


def variables_of(held: Any) -> dict[str, str]:
    """Return an environment: a mapping, a list of NAME=value, or one of {name, value}."""
    if isinstance(held, Mapping):
        return {str(name): str(value) for name, value in held.items() if value is not None}
    found = {}
    for one in held if isinstance(held, list) else ():
        if isinstance(one, Mapping) and {"name", "value"} <= {*one}:
            found[str(one["name"])] = str(one["value"])
        elif isinstance(one, str) and "=" in one:
            name, _, found_value = one.partition("=")
            found[name] = found_value
    return found


def of_env_file(text: str) -> dict[str, str]:
    """Return what a file of NAME=value lines sets: a .env, Docker's --env-file."""
    return {name: value.strip("\"'") for name, value in _SET.findall(text[:_MAX_ENV])}


def of_dotenv(script: str, place: Place) -> dict[str, str]:
    """Return what a script's load_dotenv() sets, of the file that it names or the one beside it."""
    called = re.search(r"\bload_dotenv\(\s*(?:dotenv_path\s*=\s*)?(?:[\"']([^\"']{1,200})[\"'])?", script)
    found = place.text(called[1] or ".env") if called else None
    return of_env_file(found[0]) if found else {}


def mounts_of(volumes: Iterable[str]) -> dict[str, str]:
    """Return the folders here that lie in a container: HERE:THERE, of its volumes."""
    found = {}
    for volume in volumes:
        here, _, there = volume.partition(":")
        here = re.sub(r"^(\$\{?PWD\}?|\$\(pwd\)|\$pwd|%cd%)", ".", here, flags=re.IGNORECASE)
        if here.startswith(".") and there:
            found[os.path.join(there.partition(":")[0], "")] = os.path.join(here, "")
    return found


def of_engine(
    words: Sequence[str], read: Callable[[str], tuple[str, str] | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the mounts and the environment of `docker run` and its like; none of any other command."""
    if not any(re.fullmatch(r"(docker|podman|nerdctl|apptainer|singularity)", one) for one in words[:12]):
        return {}, {}
    told = [
        (name, value)
        for word, following in zip(words, [*words[1:], ""], strict=True)
        for name, equals, given in [word.partition("=")]
        for value in [given if equals else following]
    ]
    mounts = mounts_of(value for name, value in told if name in ("-v", "--volume", "-B", "--bind"))
    files = [found[0] for name, value in told if name == "--env-file" and (found := read(value))]
    variables = {name: value for text in files for name, value in of_env_file(text).items()}
    variables |= variables_of([value for name, value in told if name in ("-e", "--env")])
    asked = next((value for name, value in told if name == "--gpus"), "").strip("'\"")
    if "device=" in asked or re.fullmatch(r"[1-9]\d?", asked):
        listed = asked.replace("device=", "").strip("'\"")
        variables["CUDA_VISIBLE_DEVICES"] = (
            listed if "device=" in asked else ",".join(map(str, range(int(asked))))
        )
    return mounts, variables


def joined(kind: ast.operator, left: Any, right: Any) -> Any:
    """Return two plain values joined by an operator; None where that cannot be."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    adds = isinstance(kind, ast.Add) and type(left) is type(right) and isinstance(left, str | list)
    if type(kind) not in _BINARY or not (numbers or adds):
        return None
    if (numbers and max(abs(left), abs(right)) > 1e15) or (adds and len(left) + len(right) > MAX_TEXT):
        return None
    try:
        return _BINARY[type(kind)](left, right)
    except (ZeroDivisionError, OverflowError):
        return None


def _calculated(node: ast.expr) -> Any:
    """Return the number that constants joined by operators make; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _calculated(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp):
        return joined(node.op, _calculated(node.left), _calculated(node.right))
    return None


def calculated_text(expression: str) -> str:
    """Return the value of a shell's whole numbers added, multiplied and divided; else the expression."""
    if _SUM.fullmatch(expression) and "**" not in expression:
        try:
            value = _calculated(ast.parse(expression.strip().replace("/", "//"), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError):
            value = None
        if isinstance(value, int):
            return str(value)
    return f"$(({expression}))"


def decided(words: Sequence[str]) -> bool | None:
    """Return what a shell's test of constants comes to; None where the text does not tell, and of no test."""
    inner = [word for word in words if word not in _TESTS]
    if len(inner) in (2, 3) and (inner[0] in ("-z", "-n") or inner[-1] == ""):
        inner = [
            "" if re.fullmatch(r"\$\{?(\w+|\w+:-)\}?", word) else word for word in inner
        ]  # set by nobody
    found: bool | None = None
    if words and words[0] in ("true", "false"):
        found = words[0] == "true"
    elif len(inner) == len(words) or any("$" in word or "`" in word for word in inner):
        return None
    elif len(inner) == 2 and inner[0] in ("-z", "-n"):
        found = (inner[1] == "") is (inner[0] == "-z")
    elif len(inner) == 3 and inner[1] in ("=", "==", "!="):
        same = fnmatchcase(inner[0], inner[2]) if "]" not in words else inner[0] == inner[2]
        found = same is (inner[1] != "!=")
    elif (
        len(inner) == 3 and inner[1] in _COMPARED and all(re.fullmatch(r"\d{1,15}", inner[i]) for i in (0, 2))
    ):
        found = _COMPARED[inner[1]](int(inner[0]), int(inner[2]))
    return not found if found is not None and "!" in words else found


def printed(inner: str, expanded: Callable[[str], str]) -> str:
    """Return what $(...) prints where its text tells: a sum, a folder, a text, how long a list is."""
    if inner.startswith("expr "):
        return calculated_text(expanded(inner[5:]).replace("\\", ""))
    entered, tidied, listed, chosen = (p.fullmatch(inner[:1000]) for p in _PRINTS)
    if _HERE.fullmatch(inner):
        return "."
    found = entered or tidied or listed
    told = expanded(found[1]) if found else "$"
    if chosen and (answer := decided([w.strip("\"'") for w in expanded(chosen[1]).split()])) is not None:
        return expanded((chosen[2] if answer else chosen[3] or "").strip())
    if "$" in told and not (tidied and " " in told.strip()):
        return f"$({inner})"
    return str(told.count(",") + 1) if listed else told if entered else " ".join(told.split())


def replaced(text: str, words: Iterable[str]) -> str:
    """Return a text as sed's words change it: texts by others, and `.*`; no further patterns."""
    for change in filter(None, map(_REPLACED.fullmatch, words)):
        plain = re.escape(change[2].replace("\\", "")).replace(r"\.\*", ".*")
        if plain.count(".*") < 2:
            text = re.sub(plain, change[3].replace("\\", "\\\\"), text)
    return text
