"""What launchers, schedulers and shells are told: processes, nodes, accelerate's options, comments."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from finegauge.catalogue.gpus import cloud_machine, known_gpu
from finegauge.documents import parse_yaml, read_text
from finegauge.errors import FileFormatError, shown
from finegauge.formats.expansions import UNSET
from finegauge.formats.launcher_files import STAGE, find_inside
from finegauge.formats.sheet import mapping_in

CONFIGS = (".yaml", ".yml", ".json", ".toml")
SHELL_ENDINGS = (".sh", ".bash", ".zsh", ".fish", ".slurm", ".sbatch")
SCRIPT_ENDINGS = (".py", *SHELL_ENDINGS)
LAUNCHERS = (
    *("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch"),
    "accelerate.commands.launch",
)
_BUILDS = {"make": ("Makefile", "makefile", "GNUmakefile"), "just": ("justfile", "Justfile", ".justfile")}
_OF_BUILDS = (".mk", *_BUILDS["make"], *_BUILDS["just"])
_READ = (*CONFIGS, *SCRIPT_ENDINGS, ".env", ".env.local", ".env.train", *_OF_BUILDS)
_SET = re.compile(
    r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w{0,99})[ \t]*[:?]{0,2}=[ \t]*"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\n]*?)[ \t]*(?:[ \t]#.*)?$"
)
_MAX_ENV = 100_000  # characters
MAX_FOLLOWED = 3  # scripts that start scripts
ALLOC_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the newer name first
# where a script, or a notebook of a cloud, starts
WORKING = re.compile(r"^(\./|/content/|/kaggle/working/)")
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


class Place:
    """Where a command is started, and what it may read."""

    def __init__(
        self,
        file: str,
        name: str,
        files: Mapping[str, str] = {},
        *,
        trusted: bool = False,
        depth: int = 0,
        mounts: Mapping[str, str] = {},
    ) -> None:
        """Begin with `files` that are written on the way; `trusted`: the user names the files."""
        self.file, self.name = file, name
        self.files = {WORKING.sub("", one): text for one, text in files.items()}
        self.trusted, self.depth = trusted, depth
        self.calls = [0, 0]  # of functions and turns of loops, of all scripts that follow each other
        self.mounts = {**mounts}  # folders of the machine that runs it: where they lie here

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

    def build(self, program: str) -> tuple[str, str] | None:
        """Return (text, path) of the file of recipes that make or just reads, if it is there."""
        names = _BUILDS.get(program, ()) if self.depth < MAX_FOLLOWED else ()
        return next(filter(None, map(self.text, names)), None)

    def beside(self, named: Any) -> str | None:
        """Return the text of a file of keys, or a module, that a script names by a path from its folder."""
        is_near = isinstance(named, str) and named.endswith((*CONFIGS, ".py")) and not os.path.isabs(named)
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
    for group in {key.partition(".")[0] for key in found if "." in key} & {*found} if hydra else ():
        found[f"{group}.chosen"] = found.pop(group)  # engine=megatron, beside engine.strategy=...
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
    total = whole_of(str(batch.get("gpus") or batch.get("G")).rpartition(":")[2])
    each = each or (total and total // (nodes or 1))
    told = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), each),
        "SLURM_GPUS": total,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": whole_of(batch.get("ntasks") or batch.get("n"))
        or (nodes and tasks and nodes * tasks),
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
    given = [told.get(key) for key in ("nnodes", "np", *_GPUS_PER_NODE, "num_processes", "num_machines")]
    given += [told["n"]] if UNSET.search(str(told.get("n"))) else []  # mpirun's; conda's is a name
    named = [str(one[0] if isinstance(one, list) else one) for one in given if one not in (None, True)]
    if unset := [value for value in named if whole_of(value) is None and value not in ("gpu", "auto", "cpu")]:
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
