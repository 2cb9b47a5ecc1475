"""Commands that other files hold: manifests, tasks of clouds, Compose, Dockerfiles, Makefiles, Python.

A file of these says what is started and on how many GPUs; what is trained says the command. Each command
becomes a `Task`, a text for the shell beside the machine that it gets, read as any script.

Python starts commands as jobs of SageMaker and Vertex AI and as subprocesses, whose words the text tells. A
job is a script of its own, its hyperparameters as options, on machines that a cloud calls by their names.
"""

import ast
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finegauge.catalogue.gpus import cloud_machine
from finegauge.documents import parse_yaml
from finegauge.errors import FileFormatError
from finegauge.formats import MAX_SCRIPT
from finegauge.formats.launchers import known_card, mounts_of, variables_of, whole_of
from finegauge.formats.makefiles import of_recipes
from finegauge.formats.python_values import Values
from finegauge.formats.script_changes import OPAQUE, callee, last_name
from finegauge.formats.sheet import listed, mapping_in
from finegauge.records import NamedTuple

_MAX_DOCUMENTS = 50
_MAX_DEPTH = 16
_MAX_TASKS = 40
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
# Counts of pods, of which the first that is stated holds, and kinds of several kinds of pods.
_COUNTS = ("replicas", "parallelism", "numNodes", "numWorkers", "minAvailable")
_JOINED = ("PyTorchJob", "TrainJob", "PaddleJob", "MPIJob", "RayJob", "RayCluster")
_RUNTIMES = {  # of Kubeflow's trainer: the file of torchtune that each starts (manifests, read 2026-11-23)
    "torchtune-llama3.2-1b": "llama3_2/1B_full",
    "torchtune-llama3.2-3b": "llama3_2/3B_full",
    "torchtune-qwen2.5-1.5b": "qwen2_5/1.5B_full",
}
_RANKED = ("PyTorchJob", "TrainJob", "PaddleJob")  # whose operator tells torchrun and accelerate of the nodes
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)")  # as Kubernetes writes a variable
_OF_GITHUB = re.compile(r"\$\{\{\s*(?:env|matrix|(?:github\.event\.)?inputs)\.(\w+)[^{}]*\}\}")
_INPUT = re.compile(r"\$\{\{\s*inputs\.(\w+)\s*\}\}")  # Azure ML's
_STARTS = ("run", "Popen", "call", "check_call", "check_output", "system", "exec")
_OWNERS = ("subprocess", "os", "sp")
_MACHINES, _REPLICAS = ("machine_type", "instance_type"), ("replica_count", "instance_count")
_MAX_WORDS = 500


class Task(NamedTuple):
    """A command and the machine that it is started on."""

    script: str
    variables: Mapping[str, str] = {}
    mounts: Mapping[str, str] = {}  # folders of the machine: where they lie here
    files: Mapping[str, str] = {}  # that the document itself holds
    nodes: int = 1
    each: int = 0  # GPUs of a node; 0 where nothing says it
    card: str = ""
    env_files: Sequence[str] = ()  # of NAME=value, beside the document


def tasks_of(text: str, name: str) -> list[Task] | None:
    """Return the commands that a YAML file of Kubernetes or Compose starts; None of any other file."""
    try:
        held = documents(text, name)
    except FileFormatError:
        if "{{" not in text:
            raise
        raise FileFormatError(
            f"{name} is a template of manifests (Helm, Jinja); name what it makes, or the training's file."
        ) from None
    if any("apiVersion" in one for one in held):
        return _of_manifests(held)
    first = held[0] if held else {}
    services, jobs = (mapping_in(first, key).values() for key in ("services", "jobs"))
    found = [_of_service(one) for one in services if isinstance(one, Mapping)]
    found += [_of_steps(first, one) for one in jobs if isinstance(one, Mapping) and "steps" in one]
    scripts = [one for one in first.values() if isinstance(one, Mapping) and "script" in one]  # of GitLab
    found += [
        Task(
            "\n".join(_words(one["script"])),
            variables_of(first.get("variables")) | variables_of(one.get("variables")),
        )
        for one in scripts
    ]
    return [task for task in found if task.script][:_MAX_TASKS] if found else None


def _of_steps(workflow: Mapping[Any, Any], job: Mapping[str, Any]) -> Task:
    """Return what a job of GitHub's workflows runs, step by step, with the first of what it is given."""
    asked = mapping_in(workflow.get("on", workflow.get(True)), "workflow_dispatch", "inputs")
    given = {name: one.get("default") for name, one in asked.items() if isinstance(one, Mapping)}
    matrix = mapping_in(job, "strategy", "matrix")
    given |= {name: one[0] for name, one in matrix.items() if isinstance(one, list) and one}
    steps = [one for one in listed(job.get("steps")) if isinstance(one, Mapping) and "run" in one]
    environments = [variables_of(one) for one in (given, workflow.get("env"), job.get("env"))]
    lines = []
    for step in steps:
        environments.append(variables_of(step.get("env")))
        lines += [f"export {name}={_quoted(value)}" for name, value in environments.pop().items()]
        lines.append(str(step["run"]))
    set_ = [f"export {name}={_quoted(value)}" for one in environments for name, value in one.items()]
    return Task(_OF_GITHUB.sub(r"${\1}", "\n".join([*set_, *lines])))


def documents(text: str, name: str) -> list[Mapping[str, Any]]:
    """Return the documents of a YAML file that holds several."""
    parts = re.split(r"^---.*$", text, maxsplit=_MAX_DOCUMENTS, flags=re.MULTILINE)
    found = [parse_yaml(part, name) for part in parts if re.search(r"^\w", part, re.MULTILINE)]
    return [one for one in found if isinstance(one, Mapping)]


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(word) for word in listed(value)]


def _line(*parts: Any) -> str:
    """Return commands, each a line or a list of words, as one line for the shell."""
    return " ".join(part if isinstance(part, str) else shlex.join(_words(part)) for part in parts if part)


def _of_manifests(held: list[Mapping[str, Any]]) -> list[Task]:
    """Return what the containers of manifests start, those on GPUs first."""
    maps = {
        str(mapping_in(one, "metadata").get("name")): variables_of(mapping_in(one, "data"))
        for one in held
        if one.get("kind") == "ConfigMap"
    }
    found: list[Task] = []
    for one in held:
        tasks = [_of_container(*held_, maps) for held_ in _containers(one, 1, 0)]
        found += _together(tasks, str(one.get("kind")))
    return sorted((task for task in found if task.script), key=lambda task: not task.each)[:_MAX_TASKS]


def _together(tasks: list[Task], kind: str) -> list[Task]:
    """Return tasks of which a job makes one, as PyTorchJob does of master and workers, on all their nodes."""
    nodes, each = sum(task.nodes for task in tasks if task.each), max([task.each for task in tasks] or [0])
    if kind not in _JOINED or not nodes:
        return tasks
    told = {"NNODES": str(nodes)} if nodes > 1 and kind in _RANKED else {}
    return [task._replace(nodes=nodes, each=each, variables={**told, **task.variables}) for task in tasks]


def _containers(
    value: Any, copies: int, depth: int
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], int]]:
    """Yield each container below `value`, its pod, and of how many pods it is."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for one in value[:_MAX_TASKS]:
            yield from _containers(one, copies, depth + 1)
    if not isinstance(value, Mapping):
        return
    copies *= whole_of(next((value[key] for key in _COUNTS if key in value), 1)) or 1
    yield from _stated_apart(value)
    for container in listed(value.get("containers")):
        if isinstance(container, Mapping):
            yield container, value, copies
    for key, inner in value.items():
        if key not in ("containers", "initContainers", "trainer"):
            yield from _containers(inner, copies, depth + 1)


def _stated_apart(value: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], int]]:
    """Yield what a RayJob and Kubeflow's TrainJob start, which state it outside of pods."""
    if isinstance(entry := value.get("entrypoint"), str):
        yield {"command": entry}, {}, 1
    trainer = mapping_in(value, "trainer")
    if {"command", "args", "numNodes"} & {*trainer}:
        nodes = whole_of(trainer.get("numNodes")) or 1
        limits = mapping_in(trainer, "resourcesPerNode", "limits")
        config = _RUNTIMES.get(str(mapping_in(value, "runtimeRef").get("name")))
        if config is not None and "command" not in trainer:
            alone = nodes == 1 and "1" in {str(limits.get(key)) for key in _GPUS}
            kind = "single_device" if alone else "distributed"
            config += "_single_device" if alone else ""
            trainer = {**trainer, "command": ["tune", "run", f"full_finetune_{kind}", "--config", config]}
        yield ({"resources": {"limits": limits}, **trainer}, {}, nodes)


def _of_container(
    container: Mapping[str, Any], pod: Mapping[str, Any], copies: int, maps: Mapping[str, Mapping[str, str]]
) -> Task:
    """Return what a container starts, with the files of the maps that are mounted in it."""
    variables = variables_of(container.get("env"))
    for source in listed(container.get("envFrom")):
        variables = {**maps.get(str(mapping_in(source, "configMapRef").get("name")), {}), **variables}
    places = {
        str(volume.get("name")): maps.get(str(mapping_in(volume, "configMap").get("name")), {})
        for volume in listed(pod.get("volumes"))
        if isinstance(volume, Mapping)
    }
    files = {
        os.path.join(str(mount.get("mountPath")), name): text
        for mount in listed(container.get("volumeMounts"))
        if isinstance(mount, Mapping)
        for name, text in places.get(str(mount.get("name")), {}).items()
    }
    resources = [mapping_in(container, "resources", part) for part in ("limits", "requests")]
    each = whole_of(next((part[key] for part in resources for key in _GPUS if key in part), 0)) or 0
    wanted = mapping_in(pod, "nodeSelector").values()
    card = next((found["gpu"] for word in wanted if (found := known_card(str(word)))), "")
    script = _line(container.get("command"), container.get("args"))
    script = _REFERENCE.sub(lambda found: variables.get(found[1], found[0]), script)
    return Task(script, variables, {}, files, copies, each, card)


def _of_service(service: Mapping[str, Any]) -> Task:
    mounts = mounts_of(map(str, listed(service.get("volumes"))))
    devices = listed(mapping_in(service, "deploy", "resources", "reservations").get("devices"))
    device = devices[0] if devices and isinstance(devices[0], Mapping) else {}
    each = whole_of(device.get("count", len(listed(device.get("device_ids"))))) or 0
    parts = (service.get("entrypoint"), service.get("command"))
    lines = (one if isinstance(one, str) else " ".join(map(_quoted, _words(one))) for one in parts if one)
    script, named = " ".join(lines), service.get("env_file")
    files = [one.get("path") if isinstance(one, Mapping) else one for one in listed(named) or [named]]
    return Task(
        script.replace("$$", "$"),
        variables_of(service.get("environment")),
        mounts,
        each=each,
        env_files=[str(one) for one in files if one],
    )


def of_task(keys: Mapping[str, Any]) -> Task | None:
    """Return the command of a task of SkyPilot, dstack or Azure ML, on the GPUs that it asks for."""
    from finegauge.formats.skypilot import accelerators

    if told := mapping_in(keys, "MODEL_ARGS"):  # of Megatron-LM's own jobs
        flags = {
            name: "" if value is True else str(value) for name, value in told.items() if value is not False
        }
        words = [word for flag in flags.items() for word in map(str, flag) if word]
        return Task(
            f"torchrun --nproc_per_node {keys.get('GPUS_PER_NODE', 8)} pretrain_gpt.py {shlex.join(words)}"
        )
    if "train_loader" in mapping_in(keys, "parameters"):  # of MosaicML's platform: the run itself
        return None
    resources, command = mapping_in(keys, "resources"), keys.get("command")
    if isinstance(keys.get("commands"), list) and keys.get("type") in ("task", "dev-environment"):
        return _of_dstack(keys, resources.get("gpu"))
    if isinstance(command, str) and {"compute", "environment"} & {*keys}:
        command = _INPUT.sub(lambda found: str(mapping_in(keys, "inputs").get(found[1], found[0])), command)
        pods = whole_of(resources.get("instance_count", 1)) or 1
        return Task(command, variables_of(keys.get("environment_variables")), nodes=pods)
    if not isinstance(keys.get("run"), str) or not {"resources", "setup", "num_nodes", "envs"} & {*keys}:
        found = [one for one in listed(keys.get("tasks")) if mapping_in(one, "resources").get("gpuCount")]
        return _of_beaker(found[0]) if found else None
    card, each = accelerators(keys)
    nodes, folder = str(keys.get("num_nodes") or 1), keys.get("workdir")
    given = {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NUM_GPUS_PER_NODE": str(each)}
    given |= variables_of(keys.get("envs")) | variables_of(keys.get("secrets"))
    mounts = {k: v for k, v in variables_of(mapping_in(keys, "file_mounts")).items() if "{" not in v}
    mounts |= {"": os.path.join(folder, "")} if isinstance(folder, str) else {}
    script = str(keys["run"])
    if isinstance(folder, str) and "://" not in folder:  # which lies there on the machine
        script = script.replace("~/sky_workdir", os.path.join(os.curdir, folder))
    return Task(script, given, mounts, {}, whole_of(nodes) or 0, each, card)


def _of_beaker(task: Mapping[str, Any]) -> Task:
    nodes, each = whole_of(task.get("replicas", 1)) or 1, whole_of(task["resources"]["gpuCount"]) or 0
    words = [*_words(task.get("command")), *_words(task.get("arguments"))]
    script = words[-1] if "-c" in words else _line(words)  # of a shell
    return Task(" ".join(script.split()), variables_of(task.get("envVars")), nodes=nodes, each=each)


def _of_dstack(keys: Mapping[str, Any], gpu: Any) -> Task:
    """Return the commands of a task of dstack, whose GPU is a word (H100:8) or a name with a count."""
    told = mapping_in(gpu)
    named = gpu if isinstance(gpu, str) else f"{told.get('name', '')}:{told.get('count', 1)}"
    card, _, number = named.partition(":")
    nodes, each = whole_of(keys.get("nodes", 1)) or 0, whole_of(number or 1) or 0
    given = {
        "DSTACK_NODES_NUM": str(nodes),
        "DSTACK_GPUS_PER_NODE": str(each),
        "DSTACK_GPUS_NUM": str(nodes * each),
    }
    script = "\n".join(map(str, listed(keys.get("commands"))))
    known = known_card(card).get("gpu", "")
    return Task(script, given | variables_of(keys.get("env")), nodes=nodes, each=each, card=known)


def of_build(text: str, name: str, words: Sequence[str] = ()) -> list[Task]:
    """Return the commands of a Dockerfile, a script of Windows, a Makefile or justfile called with `words`.

    Raises: FileFormatError for one that is too long.
    """
    if len(text) > MAX_SCRIPT:
        raise FileFormatError(f"{name} is too long; at most {MAX_SCRIPT:,} characters are read.")
    if re.search(r"(?i)(docker|container)file", name):
        return [_of_dockerfile(text)]
    if name.lower().endswith((".bat", ".cmd", ".ps1")):
        return [_of_windows(_of_power_shell(text) if name.lower().endswith(".ps1") else text)]
    scripts, files = of_recipes(text, words, just="justfile" in name.lower())
    return [Task(script, env_files=files) for script in scripts]


def _of_power_shell(text: str) -> str:
    """Return a script with its parameters' defaults as assignments, its arrays and variables as a shell's."""

    def defaults(found: re.Match[str]) -> str:
        told = re.findall(r"\$(\w{1,64})\s*=\s*(\"[^\"]*\"|'[^']*'|[\w./-]+)", found[1])
        return "".join(f"${name} = {value}\n" for name, value in told)

    def array(found: re.Match[str]) -> str:
        words = re.sub(r"\s*(?:,\s*|`?\r?\n\s*)", " ", re.sub(r"(?m)#.*$", "", found[3]))
        return f"{found[1].lower()}{found[2]}({words})"

    def table(found: re.Match[str]) -> str:
        told = re.findall(r"(\w{1,64})\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s;}]+)", found[2])
        return "".join(f"${found[1]}_{name} = {value}\n" for name, value in told)

    tables = r"\$(\w{1,64})\s*=\s*(?:\[\w+\])?@\{([^{}]*)\}"
    for name in [found[0] for found in re.findall(tables, text)][:_MAX_TASKS]:
        for used in (rf"(?i)\$\(\${name}\.(\w{{1,64}})\)", rf"(?i)\${name}\.(\w{{1,64}})"):
            text = re.sub(used, rf"${name}_\1", text)
    text = re.sub(tables, table, text)
    text = re.sub(r"(?i)\$(true|false|null)\b", lambda found: found[1].lower(), text)
    text = re.sub(r"(?ims)^\s*param\s*\((.*?)^\s*\)", defaults, text)
    text = re.sub(r"\$(\w{1,64})\s*(\+?=)\s*@\(([^()]*)\)", array, text)
    text = re.sub(r"(?<=[ \t])@(\w{1,64})(?=\s|$)", lambda found: f"${{{found[1].lower()}[@]}}", text)
    return re.sub(r"(?i)\$(?!env:)(\w{1,64})", lambda found: f"${found[1].lower()}", text)


def _of_windows(text: str) -> Task:
    """Return the commands of a batch file or a script of PowerShell, as a shell would have them."""
    joined = re.sub(r"[\^`]\r?\n[ \t]*", " ", text).replace("\\", "/")
    script = []
    for stated in joined.splitlines():
        line = re.sub(r"(?i)^\s*(@|call\s+|&\s*)", "", stated).strip()
        if re.match(
            r"(?i)(rem\b|::?|echo|if\b|for(each)?\b|else\b|goto|function|param\b|try|catch|[(){}])", line
        ):
            continue
        if found := re.fullmatch(r"(?i)(?:set\s+\"?|\$env:|\$)(\w+)\s*=\s*\"?([^\"]*)\"?", line):
            value = found[2].strip("'")
            script.append(f'export {found[1]}="{value}"')
        else:
            script.append(line)
    held = "\n".join(script)
    return Task(re.sub(r"\$env:(\w+)|%(\w+)%", lambda found: f"${{{found[1] or found[2]}}}", held))


def _of_dockerfile(text: str) -> Task:
    """Return what an image runs and starts, with what is copied into it."""
    joined = re.sub(r"\\\r?\n", " ", text)
    script, start, mounts, folder = [], dict[str, Any](), dict[str, str](), ""
    for word, rest in re.findall(
        r"(?im)^[ \t]*(ENV|ARG|WORKDIR|COPY|ADD|RUN|ENTRYPOINT|CMD)[ \t]+(\S.*)$", joined
    ):
        kind, parts = word.upper(), [one for one in rest.split() if not one.startswith("--")]
        if kind in ("ENV", "ARG"):
            script.append(f"export {rest if '=' in parts[0] else '='.join(rest.split(None, 1))}")
        elif kind == "WORKDIR":
            folder = rest.strip()
        elif kind in ("COPY", "ADD") and len(parts) > 1:
            there = os.path.normpath(os.path.join(folder, parts[-1]))
            for here in parts[:-1]:
                mounts[os.path.join(there, "")] = os.path.join(here, "")
        elif kind == "RUN":
            script.append(rest)
        else:
            exec_form = rest.lstrip().startswith("[")
            start[kind] = parse_yaml(f"x: {rest}", "a Dockerfile")["x"] if exec_form else rest
    return Task("\n".join([*script, _line(start.get("ENTRYPOINT"), start.get("CMD"))]), {}, mounts)


def unread(name: str) -> FileFormatError:
    """Return the refusal of a manifest none of whose containers says what it starts."""
    return FileFormatError(
        f"{name} starts no command in a container that is stated; name the training's own file, or script."
    )


def tasks_of_python(text: str) -> list[Task]:
    """Return the commands that a text of Python starts, as far as it tells them; none of any other text."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    values = Values(nodes, {}, {}, lambda _: None)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    card, each = _of_modal(calls, values)
    found = [Task(line, card=card, each=each) for call in calls if (line := _process(call, values))]
    return [*_jobs(calls, values), *_containers_of_python(nodes, values), *found]


def _of_modal(calls: list[ast.Call], values: Values) -> tuple[str, int]:
    """Return the GPU and how many of it a function of Modal's asks for: @app.function(gpu="A100-80GB:2")."""
    asked = [
        str(values.of(one.value)).partition(":")
        for call in calls
        for one in call.keywords
        if one.arg == "gpu" and callee(call.func)[1] in ("function", "cls")
    ]
    name, _, number = asked[0] if asked else ("", "", "")
    card = known_card(name).get("gpu", "")
    return card, (whole_of(number) or 1) if card else 0


def _containers_of_python(nodes: list[ast.AST], values: Values) -> Iterator[Task]:
    """Yield what containers are told to run, of Vertex AI's jobs and of others that are written alike."""
    held = [named for node in nodes if (named := _named(node))]
    rented = [values.of(named[key]) for named in held for key in _MACHINES if key in named]
    machines = [found for one in rented if isinstance(one, str) and (found := cloud_machine(one)) is not None]
    counts = [values.of(named[key]) for named in held for key in _REPLICAS if key in named]
    nodes_ = next((one for one in counts if isinstance(one, int) and 0 < one < 10**4), 1)
    for named in held:
        parts = [part for key in ("command", "args") if key in named for part in _parts(named[key], values)]
        if parts and ({"command", "args"} & {*named}) and machines:
            words = [_text(part, values) for part in parts]
            line = words[0] if len(words) == 1 else " ".join(map(_quoted, words))
            yield Task(line, nodes=nodes_, each=machines[0].num_gpus, card=machines[0].gpu)


def _named(node: ast.AST) -> dict[str, ast.expr]:
    if isinstance(node, ast.Call):
        return {one.arg: one.value for one in node.keywords if one.arg}
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    return {}


def _process(call: ast.Call, values: Values) -> str:
    """Return what a call of subprocess or os.system starts."""
    owner, name = callee(call.func)
    if name == "execute_train":  # of slime and its forks
        told = {one.arg: _text(one.value, values) for one in call.keywords}
        return f"python3 {told.get('train_script', 'train.py')} {told.get('train_args', '')}"
    if name not in _STARTS or owner not in _OWNERS or not call.args:
        return ""
    words = [_text(one, values) for one in _parts(call.args[0], values)]
    return words[0] if len(words) == 1 else " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word as the shell takes it for one, its variables still read."""
    return '"' + word.replace('"', '\\"') + '"' if "$" in word else shlex.quote(word)


def _parts(node: ast.expr, values: Values, depth: int = 0) -> list[ast.expr]:
    """Return the words of a list, of lists that are added, and of a name that stands for one."""
    if isinstance(node, ast.List | ast.Tuple):
        return [one for part in node.elts for one in _parts(part, values, depth + 1)][:_MAX_WORDS]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < 8:
        return _parts(node.left, values, depth + 1) + _parts(node.right, values, depth + 1)
    if isinstance(node, ast.Starred):
        return []
    if isinstance(node, ast.Name) and depth < 8 and isinstance(held := values.assigned(node.id), ast.List):
        return _parts(held, values, depth + 1)
    return [node]


def _text(node: ast.expr, values: Values) -> str:
    """Return a word, what the text does not tell as a variable of the shell."""
    value = values.of(node)
    if value is not OPAQUE:
        return str(value)
    if isinstance(node, ast.Name) and isinstance(held := values.assigned(node.id), ast.JoinedStr):
        node = held
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(part.value if isinstance(part, ast.FormattedValue) else part, values)
            for part in node.values
        )
    if isinstance(node, ast.Call) and node.args and callee(node.func)[1] == "str":
        return _text(node.args[0], values)
    return f"${last_name(node) or 'computed'}"


def _jobs(calls: list[ast.Call], values: Values) -> Iterator[Task]:
    """Yield SageMaker's jobs: an estimator with its entry point, a ModelTrainer with source and machines."""
    named = {callee(call.func)[1]: values.named(call) for call in calls}
    beside = {**named.get("SourceCode", {}), **named.get("Compute", {})}
    for call in calls:
        told = values.named(call)
        if callee(call.func)[1] == "ModelTrainer":
            told = {**beside, **told}
        script = told.get("entry_point") or told.get("entry_script")
        if isinstance(script, str) and "instance_type" in told:
            yield _job(script, told)


def _job(script: str, told: Mapping[str, Any]) -> Task:
    rented, count = cloud_machine(str(told["instance_type"])), told.get("instance_count", 1)
    nodes = count if isinstance(count, int) and 0 < count < 10**4 else 1
    each = rented.num_gpus if rented else 0
    folder = told.get("source_dir")
    path = (
        f"{str(folder).rstrip('/')}/{script}"
        if isinstance(folder, str) and folder not in (".", "./")
        else script
    )
    given = told.get("hyperparameters")
    words = [
        word
        for name, value in (given.items() if isinstance(given, dict) else ())
        for word in (f"--{name}", f"${name}" if value is OPAQUE else str(value))
    ]
    spread = "torch_distributed" in str(told.get("distribution")) or "pytorchddp" in str(
        told.get("distribution")
    )
    starts = f"torchrun --nnodes {nodes} --nproc_per_node {each}" if spread and each else "python"
    return Task(
        f"{starts} {path} {' '.join(map(_quoted, words))}",
        nodes=nodes,
        each=each,
        card=rented.gpu if rented else "",
    )
