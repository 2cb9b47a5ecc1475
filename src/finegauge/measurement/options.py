"""Options of a measurement beside the run: steps, device, instruments."""

from typing import NamedTuple


class Options(NamedTuple):
    """How a run is measured; everything about the run itself is in `Run`."""

    device: str = "cpu"  # or cuda
    steps: int = 10  # measured; `warmup_steps` more come before and are discarded
    warmup_steps: int = 2
    threads: int = 0  # of torch on the CPU; 0: as many as torch takes by itself
    seed: int = 0
    layers: bool = False  # the layer clock
    kernels: bool = False  # the kernel table of torch.profiler
    ncu: bool = False  # SM and DRAM utilisation of one layer by Nsight Compute
    experts: bool = False  # the router probe
    energy: bool = False  # the energy meter
    memory: bool = True  # the memory meter
    moments: bool = False  # load, train, evaluation, save and resume, each with its peak of memory
    evaluate: bool = False  # accuracy before tuning and after each epoch
    tasks: tuple[str, ...] = ()  # of lm-evaluation-harness
    task_folder: str = ""  # where YAML files of own tasks are; "": the harness's own are meant
    task_limit: int = 0  # questions of each task; 0: all
    trace_path: str = ""  # where the profiler's Chrome trace goes; "": nowhere
    memory_limit_bytes: float = 0.0  # what the trial may allocate; 0: what there is
    timeout_s: float = 0.0  # after which the trial counts as failed; 0: never
    endpoint: str = ""  # URL of an OpenAI-compatible server, which answers instead of this machine
    endpoint_api: str = "completions"  # or chat
    endpoint_model: str = ""  # as the server calls it; "": the only one it has
    num_requests: int = 0  # measured; 0: `steps` of every user, of whom there are `micro_batch_size`
    requests_per_s: float = 0.0  # arriving by chance; 0: every user asks again when it is answered
    request_timeout_s: float = 600.0  # after which a request has failed; 0: never
    api_key_variable: str = ""  # of the environment, where the server's key is
