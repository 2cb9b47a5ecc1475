"""What a training left behind when it failed: its error text, its log, the figures of nvidia-smi.

    failure        device_memory, host_memory, shared_memory, disk, stopped (by a time limit, by hand),
                   killed (the text does not say by whom), timeout, other; none: a log that just ends
    moment, stage  by the frames of the traceback, by its last lines where there is none: load, train (data,
                   forward, loss, backward, optimizer), evaluation, generation, save, resume
    figures        of PyTorch's sentence: tried, total, free, this process's, allocated, reserved but free

PyTorch's allocator prints what it asks the device for, not the tensor: a tensor of up to 1 MiB is asked for
as 2 MiB, one of up to 10 MiB as 20 MiB, a larger one rounded up to 2 MiB. Of several failures in one text the
first of the gravest kind counts; what follows it (other ranks, time-outs) is its consequence.

Sources: torch 2.13, c10/cuda/CUDACachingAllocator.cpp (the sentence, and get_allocation_size), c10/core/
CPUAllocator.cpp; torch 1.13 for the older sentence; Linux 6.8, mm/oom_kill.c; torch/distributed/elastic;
vllm 0.11, v1/core/kv_cache_utils.py (all read 2026-11-23).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from finegauge.errors import FileFormatError, cleaned
from finegauge.formats.training_events import Rules, words_of
from finegauge.records import NamedTuple
from finegauge.units import GB, GIB, MIB

MAX_BYTES = 50_000_000
MAX_TEXT = 4_000_000  # of a log, its end
MAX_LINE = 2_000
MAX_FRAMES = 400
MAX_PREFIX = 200
MAX_SAID = 400
MOVES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")  # of a cursor, and colours
STAGES = ("data", "forward", "loss", "backward", "optimizer")
Frame = tuple[str, str]  # "path:function", code


class Evidence(NamedTuple):
    """What one file tells; a figure that it does not hold is None."""

    name: str
    failure: str = ""  # "": nothing failed
    says: str = ""  # the line itself
    moment: str = ""
    stage: str = ""  # of a step
    code: str = ""  # innermost line that was running
    tensor: str = ""  # as that line names it
    rank: int | None = None
    step: int | None = None  # the last that the log has before it
    gpu: str = ""
    tried_bytes: float | None = None
    total_bytes: float | None = None
    free_bytes: float | None = None
    process_bytes: float | None = None
    allocated_bytes: float | None = None
    unallocated_bytes: float | None = None  # reserved by PyTorch, and free
    peak_bytes: float | None = None  # of a run that did not fail at it
    metric: str = ""  # how the peak was counted: torch_allocated, torch_reserved, nvidia_smi
    host_bytes: float | None = None  # of the process that was killed
    parts_bytes: Mapping[str, float] = {}  # of a memory snapshot


def _any(*rules: str) -> re.Pattern[str]:
    return re.compile("|".join(rules))


_DEVICE = (  # whose memory it is
    r"(?:\b(?:GPU|HIP|XPU|NPU|HPU|MUSA|MPS|METAL|HBM|hbm|VRAM)\b|cuda[A-Z]|hip[A-Z]"
    r"|(?i:\bcuda\b|gpu memory|on gpu\b|video memory|\bmetal::)|CUDA_"
    r"|DEVICE_MEMORY|DEVMEM|SYNHELPER|UR_RESULT|[oO]n device\b|device buffer|:GPU:)"
)
_CODE = (  # of a process that ended
    r"\b(?i:exit(?:ed)?|return(?:ed)?|failed)(?: with)?[ _]?(?i:code|status)?\"?\s{0,9}[:=]?\s{0,9}"
)
_NO_ROOM = (  # in whatever words
    r"(?i:alloc\w*\b.{0,40}\bfailed)", r"(?i:fail\w* to (?:\w+ ){0,2}alloc)", "(?i:insufficient memory)",
    r"(?i:(?:can ?not|could not|unable to|can't) allocate\b)", r"(?i:not enough (?:\w+ )*memory)",
    r"(?i:allocate \S+ bytes which is greater)",
)  # fmt: skip
_FULL = (*_NO_ROOM, r"(?i:out.?of.?(?!host)(?:\w+.)?(?:memory|resources)\b)", "(?i:OOM when)",
    r"MemoryAllocation\b")  # fmt: skip
FAILURES = Rules(  # beside that, the gravest first
    device_memory=(*(rf"{_DEVICE}.{{0,160}}{full}" for full in _FULL),
        *(rf"{full}.{{0,160}}{_DEVICE}" for full in _FULL),
        r"\btorch\.(?:cuda\.)?OutOfMemoryError:|^torch\.(?:cuda\.)?OutOfMemoryError\b",
        r"\bError out of memory at line \d+ in file", r"kIOGPU\w*OutOfMemory",
        "RESOURCE_EXHAUSTED:.{0,80}(?i:out of memory|allocating device)",
        r"\bCU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        "Some modules are dispatched on the CPU or the disk", "No available memory for the cache blocks",
        "larger than the available KV cache memory", "number of tokens that can be stored in KV cache",
        "Free memory on device.{1,80}is less than desired GPU memory", "mem-fraction-static",
        "No executable batch size found",
        "reserved (?:by PyTorch but unallocated|in total by PyTorch)"),
    shared_memory=("(?:out of|insufficient) shared memory", "killed by signal: Bus error",
        r"\(SIGBUS\)", rf"{_CODE}(?:-7|135)\b", "unable to allocate shared memory",
        "unable to (?:write to|open) file </torch", "No space left on device.{1,9}/dev/shm",
        "/dev/shm/.{1,80}No space left on device"),
    disk=("(?i:no space left on device)", "StorageFull", "Disk quota exceeded", "File too large",
        r"\[Errno (?:28|122)\]", "[Ee]phemeral.{1,8}storage", "PytorchStreamWriter failed",
        r"inline_container\.cc.{0,20}unexpected pos", "basic_ios::clear: iostream error"),
    host_memory=(*_NO_ROOM, r"\boom[-_]kill", 'OOMKilled(?!": false)', r"std::bad_alloc",
        r"(?i:\b(?:killed|killing|sigkill|sigterm)\b.{0,160}\b(?:memory|oom|vmrss)\b)",
        r"(?i:\b(?:memory|mem|oom|exceeded limit)\b.{0,80}\bkilled\b)", r"\bv?mem\b.{1,60}exceeded limit",
        r"(?i:\b(?:error|ran)\b.{0,80}\bout.of.memory\b)", r"\[Errno 12\]", r"^(?:\w+\.)*_?\w*MemoryError\b",
        "[Ee]xceeded (?:job |step )?memory limit", "TERM_MEMLIMIT", "paging file is too small",
        r"(?:os e|WinE)rror 1455\b", "low on resource: memory", "ray-oom-prevention",
        "using all available RAM", "tried to allocate more memory than is available",
        r"\bOUT_OF_ME(?:MORY|\+)", rf"{_CODE}137\b.{{0,80}}(?i:memory)"),
    stopped=(r"CANCELLED AT \S+ DUE TO", "DeadlineExceeded", "^KeyboardInterrupt", "TERM_RUNLIMIT",
        "walltime .{1,60}exceeded", r"(?:^|\d +|: )Terminated\b",
        r"\bgot signal: (?:2|15)\b", "death signal, shutting down",
        r"(?i:\b(?:instance|node|job|vm|spot)\b.{0,60}\bpreempt)"),
    killed=(r"(?<!via Signals\.)\bSIGKILL\b", r"(?:^|[\s\]*])Killed(?:[\s*]|$)", r"sh: killed\b",
        r"\d killed +\w", rf"{_CODE}(?:-9|137)\b", "Worker exit type: SYSTEM_ERROR", "signal: Killed",
        "abruptly died during map operation", "[Kk]ernel (?:crashed while|appears to have died|died)"),
    timeout=("collective operation timeout", r"(?i:\b(?:socket|wait|monitor)\b.{0,9}\btime(?:d )?out)",
        r"(?i:\btime(?:d )?out\b.{0,20} waiting)", "watchdog (?:got stuck|at work)",
        "Connection closed by peer", "gloo.{1,80}Connection reset by peer", r"nccl(?:Remote|System)Error",
        "NCCL communicator was aborted", "failed to pass monitoredBarrier",
        r"^(?:\w+\.)*\w*(?:Error|Exception)\b.{0,200}[Tt]imed out"),
    other=("device-side assert triggered", "illegal memory access", "out of resource: shared memory",
        "Segmentation fault", "Memory access fault by GPU", "fallen off the bus", r"\(core dumped\)",
        rf"{_CODE}(?:-6|-11|134|139)\b",
        r"\b[Ll]oss['\"]?\s?[:=]\s?['\"]?(?:nan|NaN)\b",
        r"'loss': '?0(?:\.0)?'?, 'grad_norm': '?nan\b", r"^(?:\w+\.)*\w*(?:Error|Exception)\b:?"),
)  # fmt: skip
_ADVICE = re.compile(  # names memory, and says not that it ended
    r"(?i)\b(?:avoid|prevent|may|might|if|possibl[ey]|potential|perhaps|probably|not a failure)\b"
    r".{0,60}(?:out of memory|\boom\b)|is not a failure|^\s*(?:\d+ +)?(?:except|raise)\b"
)
_PREFIX = re.compile(  # of a rank, a worker, a logger, a container or a quotation
    r"^(?:> ?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]{0,12}(?:Z|[+-]\d\d:?\d\d)?\s?"
    r"|- [\w.]{1,60} - [A-Z]{4,8} - )|"
    r"^(?:\[rank(\d{1,6})\]:\s?|\(\w+[^)]{0,40} pid=\d+[^)]{0,60}\)\s?|\[(?:\d+,)?(\d{1,6})\](?:<\w+>)?:\s?"
    r"|(\d{1,6}): |(?:ERROR|WARNING|INFO) [\d-]{5,10} [\d:.,]{8,16} \[[^\]]{1,80}\] )"
)
# of Python, of rich, of IPython in its two forms and with Colab's links
_FRAME = re.compile(
    r'^\s*(?:│\s*)?(?:File "([^"]{1,400})", line \d+, in (\S{1,200})|(\S{1,400}\.py):\d+ in (\S{1,200})'
    r"|(?:File |\[)?(\S{1,400}\.py)(?:\]\([^)]{1,200}\))?(?::\d+,)? in (?:\w{1,80}\.){0,4}(\w{1,80})\()"
)
_WRAPPED = re.compile(r"^│ (\S{1,400}\.py:\d+(?: in)?)\s*│$")  # a frame of rich that goes on in the next line
_WARNING = re.compile(r"^(\S{1,400}\.py):\d+: \w{1,40}Warning: ")
_MARKED_CODE = re.compile(r"❱\s*\d+\s*(.*)|^-+> ?\d+\s+(.*)")  # of rich, of IPython
_ENGINE = r"(?:^|/)(?:vllm|sglang|sgl|lmdeploy)(?:_\w+)?(?:/|\.py:)"  # generates, once it is built
MOMENTS = {  # beside the steps: the outermost frame that says so; load only before a step begins
    "save": _any(r":_?(?:save|dcp_save|async_save|(?:model_)?export(?:_model)?|push_to_hub|consolidate"
        r"|unsloth_save)\w*$", r":\w*_?save_(?:checkpoint|model|pretrained|ckpt|16bit)\w*$",
        r":\w*merged?_(?:and|lora|peft)\w*$", r"tuners/\S+:merge$", r"_state_dict_utils\.py:$",
        r":(?!\w*load)\w*state_dict$"),
    "resume": _any("_load_from_checkpoint", "_load_optimizer_and_scheduler",
        r"load_checkpoint(?!_(?:in|and)_)", "resume_from", "_load_best_model", "load_fsdp_opt",
        r":load_state\b", "load_optimizer", r"optimizer\.py:load_state_dict",
        r"^(?!torch/).*:_?(?:restore|resume)\w*$"),
    "evaluation": _any(r":(?:run_|do_|_)?(?:eval|evaluate|validate|validation|evaluation|prediction|test)"
        r"(?:_(?:loop|step|epoch|one_epoch|model|batch))?$", r":_?eval(?:uate)?_\w+$", ":estimate_loss$",
        r":(?!\w*(?:save|data))\w*(?:perplexity|evaluat|validation)\w*$",
        r":(?:nested_(?:concat|detach|numpify)|torch_pad_and_concatenate)$", ":compute_metrics$",
        ":preprocess_logits_for_metrics$"),
    "generation": _any(r":_?generate(?!_and_score)\w*$", ":_sample$", ":_beam_search$", ":batch_generation$",
        r":(?!\w*(?:init|build|setup|create))\w*(?:vllm|sglang|rollout)\w*$", ":wake_up$",
        r":\w*(?:refit|(?:update|sync|receive|stream|broadcast)_\w*weights?)\w*$"),
    "data": _any(r"(?:^|/)(?:datasets|pandas|polars|pyarrow|tokenizers|json)/", r":\w*_datasets?$",
        r":_?(?:pack|tokeni[sz]e|preprocess|read_(?:json|csv|parquet|jsonl|text))(?:_\w+)?$",
        r":_?cache_\w*(?:latents|embed\w*|encoder\w*)$"),
    "load": _any("from_(?:pretrained|preset|config)", r":_?load\w*$", ":set_module_tensor_to_device",
        ":quantize_(?:4bit|blockwise)$",
        rf"{_ENGINE}(?:\S*:)?(?:__init__|from_engine_args|(?:init|profile|capture)\w*)$",
        "caching_allocator_warmup", ":fully_shard$",
        r"(?:torch|bitsandbytes)/optim/\w+\.py:__init__$", r"deepspeed/__init__\.py:initialize",
        r"fully_sharded_data_parallel\.py:__init__", r"parallel/distributed\.py:(?:__init__|_ddp_init)",
        ":prepare_model", ":_move_model_to_device", r"modules/module\.py:(?:to|cuda|_apply)$",
        r"modeling_\w+\.py:__init__$", r"modeling_utils\.py:", r"core_model_loading\.py:",
        r":_?(?:setup|build|create|configure|init)_\w*(?:model|optimizer|partition)s?(?:_and_\w+)?$",
        r":get_(?:megatron_optimizer|(?:peft_)?model)$",
        r"accelerator\.py:_?prepare(?:_(?:one|fsdp2?|deepspeed))?$", ":determine_(?:num_)?available",
        ":profile_run", "initialize_kv_cache"),
}  # fmt: skip
OF_STEP = {  # the innermost frame that says so, but see `_follows`
    "data": _any(r"dataloader\.py:", "utils/data/_utils/", r":get_batch_samples\b", "collat",
        r":(?:\w+_to_device|\w*batch_to)\b", r":_?prepare_inputs?\b",
        r"\b(?:batch|inputs?|labels)\b.{0,40}\.(?:to|cuda)\("),
    "backward": _any(r":(?!\w*forward)\w*backward\w*\b", "run_backward", r"\.backward\(",
        "run the backward pass"),
    "optimizer": _any("torch/optim/", "bitsandbytes/optim", "/optimi[sz]ers?/", r"optimizer\.py:step\b",
        r"engine\.py:(?:step|_take_model_step)\b", r"\w*opt\w*\.step\(", "clip_grad", ":_?unscale_",
        r"(?:adam|adamw|muon|lion|galore|shampoo|adafactor)\w*\.py:", r":_init_group\b"),
    "loss": _any("loss_utils", r":_?convert_to_fp32\b", r":\w*CausalLMLoss\b", "log_softmax",
        "cross_entropy", "fused_linear", r"lm_head\b", r"\b\w*_from_logits\b",
        r"logits\b.{0,30}\.float\(\)", "kl_div", r":(?!\w*(?:compute|batch))\w+_loss(?::|$)",
        "^[^:]*/loss(?:es)?/"),
    "forward": _any(r"[:.]\w*(?:log_?probs?|logps)\w*(?:[:(]|$)", r":update_(?:policy|actor|critic)\b",
        r":\w*forward(?:_\w+)?\b", r":(?:_call_impl|compute_loss)\b", r":\w*train(?:ing)?_(?:\w+_)?step\b",
        r"modeling_(?!utils)\w+\.py", r"train_step\(", r"model\(\*\*"),
}  # fmt: skip
_LOOP = re.compile(
    r":\w*train(?:ing)?_\w*(?:loop|epoch)$|megatron/training/training\.py:train$"
    r"|torchinductor_\S*:call$"
)
_PLUMBING = re.compile("^(?:torch|triton|numpy)/")  # whose functions are named after no moment of a job
OF_JOBS = ("evaluation", "generation", "data")
GOES_ON = ("backward optimizer", "loss backward")  # not forward: backward runs it once more, with its loss
_CLOSURE = _any(":closure$", ":training_step$")  # an optimizer may call the step's forward pass itself
_LOADER = re.compile("DataLoader worker|encountered in worker")
_PINNED = _any(r":_?pin_memory$", r"\bpin_memory\(", "cudaHostAlloc", "CachingHostAllocator")
MARKS = Rules(  # of a log whose process was killed without a word, by its last line that tells
    resume=("(?i:resum(?:e|ing) (?:from|training))", "Loading (?:optimizer|model from checkpoint)",
        "Continuing training from", "Restoring (?:checkpoint|states)",
        r"(?i:\bloading (?:\w+ )?checkpoint from)"),
    data=(r"^(?:Map|Filter)\b[^|]{0,60}:", r"\bexamples/s\]",
        r"(?i:\b(?:load|generat|prepar|process|preprocess|tokeniz|pack|read|shuffl)ing\b"
        r".{0,30}\b(?:data ?sets?|data|split|examples|corpus)\b)", "Running tokenizer"),
    load=(r"(?i:\b(?:load|fetch|download|quantiz|creat|build|initializ)ing (?:\S+ ){0,3}"
        r"(?:model|weights|(?:checkpoint )?shards|safetensors|files|partitions|optimizer|engine)\b)",
        "KV cache memory", "warming up sampler"),
    evaluation=("(?i:\\brunning (?:evaluation|prediction|validation))", "['\"]eval_loss['\"]",
        "(?i:\\b(?:evaluat|validat|predict)ing\\b)", "[Vv]al(?:idation)? [Ll]oss",
        r"^(?:Val(?:idation)?|Eval(?:uation)?|Prediction|Testing)\b[^|%]{0,20}\d+%"),
    save=(r"(?i:\b(?:sav|writ|merg|export|upload|push)(?:ing|ed)\b.{0,40}"
        r"\b(?:model|optimizer|checkpoint|current state|weights|shards|lora|adapters?)\b)",
        "Configuration saved in", "Saving the", "Summoning checkpoint"),
    generation=("Generating", r"Processed prompts: +\d{1,2}%", r"cumem_allocator\.cpp"),
    train=("Running training", "['\"](?:loss|train_runtime)['\"]: ", r"\b[Ll]oss[ :=]{1,3}\d",
        r"(?:it/s|s/it)[\],]", r"\b(?:iteration|step)[ :]\s*\d+", r"\bIter\(train\)",
        r"\btrain/(?:loss|global_step)\b"),
)  # fmt: skip
AWAY = ("evaluation", "save", "generation")  # of training
TENSORS = {  # what a line of code holds, in words
    "kept logits": _any("pad_across_processes", "gather_function", "gather_for_metrics", "nested_concat",
        "nested_detach", "EvalLoopContainer", "torch_pad_and_concatenate"),
    "KV cache": _any(r"cache_utils\.py", r"\b(?:key|value|\w*kv)_cache"),
    "logits": _any(r"logits|cross_entropy|CausalLMLoss|lm_head|log_softmax"),
    "attention scores": _any(r"attn_weights|attention_scores|scores\b.*softmax|baddbmm|q\w* @ k"),
    "optimizer states": _any(r"zeros_like\(\s*p\b|exp_avg|state\[|init_state|_init_group|init_8bit"),
    "gradients": _any(r"\.grad\b|grad_buffer|flat_grad|reduce_scatter"),
    "dequantised weight": _any(r"dequantize"),
    "feed-forward activations": _any(
        r"act_fn|gate_proj|up_proj|down_proj|swiglu|geglu|silu|gelu|\bw[123]\b|\bmlp\("),
    "gathered weights": _any(r"all_gather|unshard|_pre_forward|fetch_sub_module"),
    "embeddings": _any(r"embed_tokens|wte\(|F\.embedding"),
}  # fmt: skip
MADE_IN = {
    "attention scores": "forward",
    "feed-forward activations": "forward",
    "embeddings": "forward",
    "optimizer states": "optimizer",
}
_UNITS = {"B": 1.0, "bytes": 1.0, "KiB": 2.0**10, "kB": 2.0**10, "MiB": MIB, "GiB": GIB, "TiB": 2.0**40,
          "KB": 1e3, "MB": 1e6, "GB": GB, "M": MIB, "G": GIB}  # fmt: skip
_AMOUNT = r"(\d{1,15}(?:\.\d{1,6})?) ?(bytes|[kKMGT]i?B|[BMG])\b"
FIGURES = Rules(  # of both sentences of PyTorch: from 2.1 on, and before
    tried_bytes=(rf"[Tt]r(?:ied|ying) to allocate {_AMOUNT}", rf"Attempting to allocate {_AMOUNT}",
        rf"^Requested\s+: {_AMOUNT}"),
    total_bytes=(rf"total capacity of {_AMOUNT}", rf"; {_AMOUNT} total capacity", rf"max allowed: {_AMOUNT}",
        rf"of {_AMOUNT} hbm", rf"^Device limit\s+: {_AMOUNT}"),
    free_bytes=(rf"of which {_AMOUNT} is free", rf"; {_AMOUNT} free", rf"There are {_AMOUNT} free",
        rf"^Free \(according to CUDA\): {_AMOUNT}"),
    process_bytes=(rf"this process has {_AMOUNT} memory in use",),
    allocated_bytes=(rf"memory {_AMOUNT} is allocated by PyTorch", rf"; {_AMOUNT} already allocated",
        rf"MPS allocated: {_AMOUNT}", rf"memory space hbm\. Used {_AMOUNT}",
        rf"^Currently allocated\s+: {_AMOUNT}"),
    unallocated_bytes=(rf"{_AMOUNT} is reserved by PyTorch but unallocated",),
    reserved=(rf"; {_AMOUNT} reserved in total",),
    host_bytes=(rf"\banon-rss:{_AMOUNT}", rf"\bmemory used={_AMOUNT}", rf"^Memory Utilized: {_AMOUNT}"),
)  # fmt: skip
_PROCESS = re.compile(rf"Process \d+ has {_AMOUNT} memory in use")
STEPS = Rules(
    step=(r"[|%]\s*(\d{1,9})/\d{1,9} \[", r"\bepoch \d+: +(\d{1,9}) / \d",
        r"(?:(?<![a-z])[Ss]tep|\b[Ii]ter(?:ation)?)[ :=]+(\d{1,9})\b(?!%)",
        r"['\"](?:current_|global_)?steps?['\"]: (\d{1,9})", r"'global_step/max_steps': '(\d{1,9})/",
        r"\bIter\(train\) \[ *(\d{1,9})/"),
)  # fmt: skip
_BAR = re.compile(r"\d{1,3}%\|.{0,200}?\|\s*\d{1,9}/(\d{1,9}) \[")
_DUMPED = re.compile(  # a frame of py-spy or of faulthandler, the innermost first
    r'^ {4}(\S{1,200}) \((\S{1,400}\.py):\d+\)$|^  File "([^"]{1,400})", line \d+ in (\S{1,200})$'
)
_SMI = re.compile(  # of nvidia-smi, gpustat, nvitop
    r"(\d{1,9}) ?MiB\s*/\s*(\d{1,9}) ?MiB|\|\s*(\d{1,9}) / (\d{1,9}) MB\b"
    r"|[|│]\s*(\d{1,6}(?:\.\d+)?)GiB / (\d{1,6}(?:\.\d+)?)GiB\s*[|│]"
)
_SMI_NAME = re.compile(
    r"(?:[|│]\s+\d+\s+|^\[\d+\] )([A-Z]\w[\w .-]{1,60}?)(?:\.\.\.)?\s+(?:(?:On|Off|N/A)\s*)?[|│]"
)
_SMI_COLUMNS = re.compile(r"(?:.*--query-gpu=)?([\w.]+[\w. \[\]%/,]*)")
_NUMBER = r" ?(\d{1,9}(?:\.\d{1,6})?)"
PEAKS = Rules(**{  # that trainers and tools log, with their unit
    "torch_allocated MiB": (rf"\| max allocated:{_NUMBER}",  # Megatron-LM
        r"\| Allocated memory +\| +\d+ MiB \| +(\d{1,9}) MiB"),  # PyTorch's memory_summary
    "torch_reserved MiB": (rf"\| max reserved:{_NUMBER}",),
    "torch_allocated GiB": (rf"\bMax_MA{_NUMBER} GB",  # DeepSpeed's see_memory_usage
        rf"\bpeak_memory_alloc ?[:=]{_NUMBER}",  # torchtune
        rf"'memory/max_(?:mem_)?allocated ?\([Gg]i[Bb]\)': ?'?{_NUMBER}"),  # Axolotl
    "torch_reserved GiB": (rf"\bpeak_memory_reserved ?[:=]{_NUMBER}",
        rf"\bmemory:{_NUMBER}GiB\(",  # torchtitan
        rf"'memory\(GiB\)': ?'?{_NUMBER}", rf"[Pp]eak reserved memory ={_NUMBER} GB"),  # ms-swift, Unsloth
    "nvidia_smi MiB": (r"\b(?:C|G|C\+G) +\S.* (\d{1,9})MiB \|$", r"^\s+Used\s+: (\d{1,9}) MiB"),
    "nvidia_smi B": (r"VRAM Total Used Memory \(B\): (\d{1,15})",  # rocm-smi
        r'gpu\.\d+\.memoryAllocatedBytes"?: ?(\d{1,15})'),  # W&B's system metrics
})  # fmt: skip


def text_evidence(text: str, name: str) -> Evidence:
    """Return what a text tells; `name` is how messages call it.

    Raises: FileFormatError where that is nothing.
    """
    reader = _Reader()
    for line in re.split(r"[\r\n]+", MOVES.sub("", text[-MAX_TEXT:])):
        reader.read(line[:MAX_LINE])
    found = reader.found(name)
    if found is None:
        raise FileFormatError(
            f"{name} holds no error, no figure of memory and no step of a training; give the text of "
            "the error, a log, the output of nvidia-smi or a memory snapshot."
        )
    return found


def placed(frames: Sequence[Frame]) -> tuple[str, str]:
    """Return the moment and, of a step, the stage that frames stand in, the outermost first; "" unknown."""
    moment = stage = ""
    inside = False  # of the loop over steps
    for (where, code), (called, _) in zip(frames, [*frames[1:], ("", "")], strict=False):
        inside = inside or bool(_LOOP.search(where))
        place = f"{where}: {code}" if code else where
        for name in _named(where):
            again = moment == "load" and name == "resume"  # of a set-up that reads a checkpoint
            begins = name in ("data", "load", "resume")  # what a step does not do
            if (again or not moment) and not (begins and stage):
                moment = "resume" if inside and name == "load" and ":load" in where else name
        if stage == "optimizer" and _CLOSURE.search(where):
            stage = ""
        for name, rule in OF_STEP.items():
            other = "call_impl" in called and name in ("backward", "optimizer")  # in the same line
            more = stage in ("", "data", "forward") or f"{stage} {name}" in GOES_ON
            if more and rule.search(where if other else place):
                stage = name
                break
    builds = any(where.endswith(":__init__") for where, _ in frames)  # something before the first step
    if not moment and any(re.search(_ENGINE, where) for where, _ in frames):
        moment = "load" if builds else "generation"
    if moment:
        return moment, ""
    return ("train", stage) if stage else _by_lines(frames, "train" if inside else "load" if builds else "")


def _named(where: str) -> Iterator[str]:
    """Yield the moments, beside the steps, that a function is named after."""
    for name, rule in MOMENTS.items():
        if rule.search(where) and not (name in OF_JOBS and _PLUMBING.match(where)):
            yield name


def _by_lines(frames: Sequence[Frame], otherwise: str) -> tuple[str, str]:
    """Return the moment and stage by what lines call and make: of C code, of frames left out, of own code."""
    calls = (f":{name}" for _, code in frames for name in re.findall(r"(\w{1,80})\(", code))
    if moment := next((name for call in calls for name in _named(call)), ""):
        return moment, ""
    if stage := MADE_IN.get(tensor_of(frames), ""):  # which lines of that stage alone make
        return "train", stage
    return otherwise, ""


def tensor_of(frames: Sequence[Frame]) -> str:
    """Return what the last line of a model or trainer makes, with what it calls below; "" unknown."""
    own = [n for n, (where, _) in enumerate(frames) if not _PLUMBING.match(where)]
    near = frames[own[-1] if own else -1 :]
    named = " ".join(code for _, code in near) + "".join(f" {where}" for where, _ in near)
    return next((name for name, rule in TENSORS.items() if rule.search(named)), "")


class _Reader:
    """Reads a text line by line; of each rank it keeps the frames of its last traceback."""

    def __init__(self) -> None:
        self._frames: dict[int, list[Frame]] = {}
        self._mark, self._step, self._gpu = "", None, ""  # type: str, int | None, str
        self._bar = self._last_bar = ""  # how many steps training's counts to
        self._trains = False  # a loss was logged
        self._dump: list[Frame] = []  # of one thread
        self._hangs = ("", "")
        self._prefix = 0  # characters before a traceback's lines
        self._columns: list[str] = []
        self._wrapped = ""
        self._cut: list[Frame] = []  # an indented line: of a traceback whose beginning is missing
        self._best: Evidence | None = None
        self._from = 0  # a step that other ranks may reach after the failure
        self._went_on = False
        self._peaks: dict[str, float] = {}
        self._total = 0.0

    def read(self, line: str) -> None:
        """Take one more line."""
        rank = -1
        while prefix := _PREFIX.match(line):
            rank = next((int(one) for one in prefix.groups() if one), rank)
            line = line[prefix.end() :]
        line = self._bare(line)
        before, trace, after = line.partition("Traceback (most recent call last)")
        if trace and not before.endswith("C++ "):
            self._noted(before, words_of(before))  # a bar has no end of line
            self._frames[rank] = []
            self._framed(after.lstrip(":"), self._frames[rank])
        elif frame := _DUMPED.match(line):
            function, path = (frame[1], frame[2]) if frame[1] else (frame[4], frame[3])
            self._dump += [(f"{path}:{function}", "")] if len(self._dump) < MAX_FRAMES else []
        elif not self._framed(line, self._frames.setdefault(rank, [])):
            if line.startswith(("Thread ", "Current thread ")):
                self._end_dump()
            words = words_of(line)
            self._noted(line, words)
            self._failed(line, words, rank)
            self._cut = [("", line.strip())] if line[:1] == " " else []

    def _bare(self, line: str) -> str:
        """Return a traceback's line without what stands before each, whatever it is."""
        if (at := line.find('  File "', 0, MAX_PREFIX)) > 0:
            self._prefix = at
        elif not (at == -1 and line[self._prefix :].startswith("    ")):  # no code below a frame
            self._prefix = 0
        return line[self._prefix :]

    def _end_dump(self) -> None:
        """Keep where a thread stood, unless another has told that already."""
        if self._dump and not self._hangs[0]:
            self._hangs = placed(self._dump[::-1])
        self._dump = []

    def _framed(self, line: str, frames: list[Frame]) -> bool:
        """Take a line of a traceback; return whether it is one."""
        if self._wrapped:
            line, self._wrapped = f"{self._wrapped} {line.strip('│ ').removeprefix('in ')}", ""
        elif wrapped := _WRAPPED.match(line):
            self._wrapped = wrapped[1].removesuffix(" in") + " in"
            return True
        if (".py" in line or 'File "' in line) and (frame := _FRAME.match(line)):
            path, function = filter(None, frame.groups())
            code, more, rest = line[frame.end() :].partition(' File "')  # of a log that joins lines
            if len(frames) < MAX_FRAMES:
                path = re.sub(r".*/(?:site|dist)-packages/", "", path.replace(chr(92), "/"))
                frames.append((f"{path}:{function}", code.strip() if frame[1] else ""))
            return self._framed(more + rest, frames) if more else True
        if frames and not frames[-1][1]:
            marked = _MARKED_CODE.search(line)
            if marked or re.match(r" {4,}[^\s\d]", line):
                frames[-1] = frames[-1][0], (marked[1] or marked[2] or "" if marked else line).strip(" │")
                return True
        return line.lstrip()[:1] in ("^", "~", "│" if frames else "^") or not line.strip()

    def _noted(self, line: str, words: str) -> None:
        """Take what a line of a log says of the run's progress and of its memory."""
        mark = next((name for name, _ in MARKS.matches(line, words)), "")
        bar = _BAR.search(line) if "%|" in line else None
        self._last_bar = bar[1] if bar else self._last_bar
        loss = "loss" in words
        if mark == "train" and loss:
            self._bar, self._trains = self._last_bar, True
        elif self._trains and bar and not self._bar:
            self._bar = bar[1]
        elif mark == "train" and bar and bar[1] != self._bar and (self._bar or self._mark in AWAY):
            mark = self._mark if self._mark in AWAY else "evaluation"  # that has a bar of its own
        self._mark = mark or self._mark
        if mark in ("", "train") and (step := next(STEPS.matches(line, words), None)):
            self._step = int(step[1][1])
        self._from = 1 if mark == "load" else self._from  # it starts anew
        if self._best and mark == "train" and loss and (self._step or 0) > self._from:  # not what ended it
            self._went_on = True
            self._frames.clear()
        for name, figure in PEAKS.matches(line, words):
            metric, unit = name.split()
            self._peaks[metric] = max(self._peaks.get(metric, 0.0), _bytes(figure[1], unit))
        if self._columns or "|" in line or "│" in line or "MiB" in line or "# gpu" in line or ".used" in line:
            self._smi(line)

    def _smi(self, line: str) -> None:
        """Take a line of nvidia-smi's table, of its CSV or of gpustat: the fullest GPU counts."""
        gpu = _SMI_NAME.search(line)
        self._gpu = gpu[1] if gpu else self._gpu
        smi = _SMI.search(line)
        used, total = list(filter(None, smi.groups())) if smi else ("", "")
        if smi and smi[5]:
            used, total = (f"{1024 * float(size):.0f}" for size in (used, total))
        cells = [cell.strip() for cell in line.split(",")] if "," in line else line.split()
        if line.startswith("# gpu ") and " fb" in line:  # of dmon and pmon
            self._columns = line[1:].split()
        elif "memory.used" in line and (columns := _SMI_COLUMNS.match(line)):
            self._columns = [cell.split()[0] for cell in columns[1].split(",") if cell.strip()]
        elif len(cells) == len(self._columns) > 1:
            row = dict(zip(self._columns, cells, strict=True))
            used, total = (row.get(name, "").removesuffix(" MiB") for name in ("memory.used", "memory.total"))
            used = used or row.get("fb", "")
            self._gpu = row.get("name") or self._gpu
        if used.isdecimal() and len(used) < 10 and MIB * int(used) >= self._peaks.get("nvidia_smi", 0.0):
            self._peaks["nvidia_smi"] = MIB * int(used)
            self._total = MIB * int(total) if total.isdecimal() and len(total) < 10 else 0.0

    def _failed(self, line: str, words: str, rank: int) -> None:
        failure, known = next((name for name, _ in FAILURES.matches(line, words)), ""), self._best
        failure = "" if failure in ("device_memory", "host_memory") and _ADVICE.search(line) else failure
        figures = _figures(line, words) if failure or known else {}
        if known and failure in ("", known.failure) and known.failure in ("device_memory", "host_memory"):
            told = {"host_bytes"} if failure else figures.keys()  # by a line that follows
            more = {name: figures[name] for name in told & figures.keys() if getattr(known, name) is None}
            self._best = known._replace(**more)
        if not failure:
            return
        frames = self._frames.get(rank) or (self._cut if any(placed(self._cut)) else [])
        if warning := _WARNING.match(line):
            frames = [(f"{warning[1]}:", "")]
        if failure == "device_memory" and not figures and _PINNED.search(" ".join(sum(frames[-3:], ()))):
            failure = "host_memory"
        if not self._counts(failure, frames, "tried_bytes" in figures):
            return
        moment, stage = ("train", "data") if _LOADER.search(line) else placed(frames)
        stage = "" if "RESOURCE_EXHAUSTED" in line else stage  # XLA's programs are whole steps
        if known and not (moment or frames or self._went_on):  # the same failure in other words
            moment, stage = known.moment, known.stage
        tensor = tensor_of(frames)
        self._from, self._went_on = (self._step or 0) + 1, False
        self._best = Evidence(
            "", failure, cleaned(line.strip().partition(" If reserved but")[0][:MAX_SAID]),
            moment or self._mark, stage, code=cleaned(frames[-1][1][:MAX_SAID]) if frames else "",
            tensor=tensor if moment != "load" or tensor in ("optimizer states", "KV cache") else "",
            rank=rank if rank >= 0 else None, step=self._step, **figures,
        )  # fmt: skip

    def _counts(self, failure: str, frames: list[Frame], has_figures: bool) -> bool:
        """Return whether a failure says more than the one known: it is graver, or alone has a traceback."""
        known = self._best
        if known is None or (self._went_on and (frames or failure != known.failure)):
            return True
        bare = not (known.moment or known.host_bytes or (known.tried_bytes and not has_figures))
        return FAILURES.names.index(failure) < FAILURES.names.index(known.failure) or (
            bool(frames) and bare and failure == known.failure
        )

    def found(self, name: str) -> Evidence | None:
        """Return what all lines together tell; None where that is nothing."""
        self._end_dump()
        best, peaks, (moment, stage) = self._best, self._peaks, self._hangs
        if best is None and not peaks and self._step is None and not moment:
            return None
        best = best or Evidence("", moment="train" if peaks and "nvidia_smi" not in peaks else self._mark)
        if moment and best.failure in ("", "timeout"):
            best = best._replace(moment=moment, stage=stage)
        metric = next(
            (one for one in ("torch_allocated", "torch_reserved", "nvidia_smi") if one in peaks), ""
        )
        total = best.total_bytes or self._total or None
        if best.failure == "device_memory" and self._went_on:
            best = best._replace(failure="", moment=self._mark, stage="")
        if best.failure in ("host_memory", "killed"):  # a kernel's log may stand before the process's own
            best = best._replace(moment=best.moment or self._mark)
        return best._replace(
            name=name, step=self._step if best.step is None else best.step, gpu=self._gpu, total_bytes=total,
            peak_bytes=peaks.get(metric), metric=metric,
        )  # fmt: skip


def _figures(line: str, words: str) -> dict[str, Any]:
    if "MPS backend" in line:
        line = line.replace(" GB", " GiB")  # which it was, before it was named so
    found = [(name, _bytes(*one.groups())) for name, one in FIGURES.matches(line, words)]
    figures = dict(reversed(found))  # the first of each
    held, reserved = figures.get("allocated_bytes", inf), figures.pop("reserved", None)
    if reserved is not None and held < inf:
        figures["unallocated_bytes"] = max(0.0, reserved - held)
    if figures.get("process_bytes", inf) < figures.get("allocated_bytes", 0.0):
        del figures["process_bytes"]  # as some containers say: 0 bytes
    least = 0.99 * (held + figures.get("unallocated_bytes", 0.0))
    if own := [size for one in _PROCESS.findall(line) if (size := _bytes(*one)) >= least]:
        figures.setdefault("process_bytes", min(own))  # of several, the one that can hold that much
    return figures


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]
