"""A server of the Model Context Protocol over stdin and stdout, by which assistants ask FineGauge.

It reads, in the folder where it was started and nowhere else, and writes nothing. A wrong question is
answered by one sentence, marked as an error, which an assistant can act on; a line that is no message, by an
error of JSON-RPC. One question is answered at a time, by a process that is ended where it takes too long or
too much memory.
"""

import json
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any, BinaryIO, NamedTuple

from finegauge import __version__
from finegauge.answers import questions
from finegauge.answers.catalogue import found_gpus, found_models, plain
from finegauge.answers.questions import ARGUMENTS, Asked
from finegauge.catalogue.hub import user_catalogue
from finegauge.documents import cache_path, json_text
from finegauge.errors import FineGaugeError, did_you_mean, internal_error, shown
from finegauge.render.json import document
from finegauge.sandbox import EndedError, Seat, Worker, bound_memory, reading_only

MAX_ARGUMENTS_BYTES = 100_000
MAX_LINE_BYTES = 1_000_000
WITHIN_S = 60.0  # one answer
MOST_MEMORY_BYTES = 4 * 2**30  # of the process that answers, virtual
INSTRUCTIONS = (
    "FineGauge predicts what fine-tuning a language model takes: memory, time, cost, energy. Figures are in "
    "SI units, the unit is the end of each name; null is not known. Predictions are not measurements: the "
    "p10 and p90 beside a figure say how sure it is."
)


MAX_ROWS = 50

_SUBJECT: dict[str, Any] = {
    "file": {
        "type": "string",
        "description": "A training file below the server's folder: LLaMA-Factory, Axolotl, TRL, torchtune, "
        "NeMo, ms-swift, Unsloth, torchtitan, a FineGauge run file or a config.json. Or give 'run'.",
    },
    "run": {
        "type": "object",
        "description": "The fields of a run instead of a file, such as {'model': 'llama-3-8b', 'method': "
        "'qlora', 'dataset': 'math_14k', 'seq_len': 2048, 'micro_batch_size': 4}.",
    },
    "overrides": {
        "type": "object",
        "description": "Fields laid over the file or the run, such as {'micro_batch_size': 8}.",
    },
}
_PATTERN: dict[str, Any] = {"type": "string", "description": "Part of a name; all where it is not given."}


class Tool(NamedTuple):
    """One question that may be asked."""

    name: str
    description: str
    arguments: dict[str, Any]  # JSON schemas by name
    answer: Callable[[Asked], str]  # a JSON text

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        return {"type": "object", "properties": self.arguments, "additionalProperties": False}

    def call(self, asked: Asked) -> str:
        """Return the answer as JSON on one line.

        Raises: FineGaugeError in one sentence.
        """
        asked.check_names(self.arguments)
        return json_text(json.loads(self.answer(asked)), None)


def _models(asked: Asked) -> str:
    rows = []
    for found in found_models(asked.text("pattern")):
        row = {**found._asdict(), "model_type": str(found.config.get("model_type", ""))}
        del row["config"]
        rows.append(row)
    return _listed("models", rows)


def _gpus(asked: Asked) -> str:
    rows = [plain(spec) | {"measured": None} for spec in found_gpus(asked.text("pattern"))]
    return _listed("gpus", rows)


def _listed(command: str, rows: list[dict[str, Any]]) -> str:
    whole = {"command": command, "num_found": len(rows), "results": rows[:MAX_ROWS]}
    return json_text(whole, None)


def _about_run(
    name: str, description: str, ask: Callable[[Asked], Any], more: Iterable[str], command: str = ""
) -> Tool:
    """Return the tool that answers as a command does; `more` is what it may be given beside the run."""
    arguments = {**_SUBJECT, **{one: ARGUMENTS[one] for one in more}}
    return Tool(name, description, arguments, lambda asked: document(command or name, ask(asked)))


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        _about_run(
            "estimate",
            "Predict what a fine-tuning run takes on each GPU: memory, seconds per step, hours, dollars, "
            "kWh, CO2, and where they go. Without 'gpus' (and none in the run) common ones are compared.",
            questions.estimate, ("gpus", "at_max_batch"),
        ),
        _about_run(
            "check",
            "Say whether a fine-tuning run fits its GPU: fits, risky or will_not_fit, with the probability "
            "of running out of memory and the micro-batch that would be safe.",
            questions.check, ("gpus",),
        ),
        _about_run(
            "max_batch",
            "Find the largest micro-batch of a fine-tuning run that fits each GPU.",
            questions.max_batch, ("gpus",), "max-batch",
        ),
        _about_run(
            "plan",
            "Find the cheapest, fastest or greenest way to do a fine-tuning run: GPU, count, provider, "
            "method, sharding, batch; with the front of cost, time and energy, and why others lose.",
            questions.plan, (name for name in questions.PLANNED_BY if name != "risk_fraction"),
        ),
        Tool("models", "List the models that are known, with their sizes.", {"pattern": _PATTERN}, _models),
        Tool("gpus", "List the GPUs that are known, with their figures.", {"pattern": _PATTERN}, _gpus),
    )
}  # fmt: skip


def answered(name: str, arguments: dict[str, Any], folder: str) -> tuple[str, bool]:
    """Return the text that answers one call, and whether it is an error."""
    if name not in TOOLS:
        return f"No tool named {shown(name)}.{did_you_mean(name, TOOLS)} There are {', '.join(TOOLS)}.", True
    try:
        if len(json.dumps(arguments)) > MAX_ARGUMENTS_BYTES:
            return f"The arguments are too long; at most {MAX_ARGUMENTS_BYTES:,} bytes are read.", True
        with reading_only(folder, *user_catalogue(), cache_path()):
            return TOOLS[name].call(Asked(arguments, folder)), False
    except FineGaugeError as error:
        return " ".join(str(error).split()), True
    except Exception as error:
        return internal_error(error), True


def in_time(name: str, arguments: dict[str, Any], folder: str) -> tuple[str, bool]:
    """Return what a process answers, or a sentence where it takes too long or ends."""
    try:
        text, is_error = _seat().asked(answered, (name, arguments, folder), WITHIN_S)
    except EndedError as error:
        return str(error), True
    return text, is_error


@cache
def _seat() -> Seat:
    from multiprocessing import get_context

    return Seat(lambda: Worker(get_context("spawn"), bound_memory, MOST_MEMORY_BYTES))


class Lines:
    """What a client writes, line by line: the messages of the protocol, each other line refused."""

    def __init__(self, file: BinaryIO, refuse: Callable[[Any, int, str], Awaitable[None]]) -> None:
        """Read `file`; `refuse` is given the id where there is one, JSON-RPC's code and a sentence."""
        self._file, self._refuse = file, refuse

    def __aiter__(self) -> "Lines":
        """Return itself."""
        return self

    async def __anext__(self) -> str:
        """Return the next message."""
        import anyio

        while line := await anyio.to_thread.run_sync(self._next, abandon_on_cancel=True):
            refused = fault(line)
            if refused is None:
                return line.decode()
            await self._refuse(*refused)
        raise StopAsyncIteration

    def _next(self) -> bytes:
        """Return the next line that is not empty, cut where it is too long; b"" at the end."""
        line = b"\n"
        while line and not line.strip():
            line = self._file.readline(MAX_LINE_BYTES + 1)
        end = line
        while len(line) > MAX_LINE_BYTES and end and not end.endswith(b"\n"):
            end = self._file.readline(MAX_LINE_BYTES)
        return line


def fault(line: bytes) -> tuple[Any, int, str] | None:
    """Return why a line is no message (its id, JSON-RPC's code, a sentence); None where it is one."""
    import mcp_types as types

    if len(line) > MAX_LINE_BYTES:
        return None, types.INVALID_REQUEST, f"A message has at most {MAX_LINE_BYTES:,} bytes."
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        message = None
    has_odd_id = isinstance(message, types.JSONRPCNotification) and b'"id"' in line
    if message is not None and not has_odd_id:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None, types.PARSE_ERROR, "This line is no JSON; send one message of JSON-RPC 2.0 on each line."
    if has_odd_id and "id" not in value:  # but deeper in
        return None
    id_ = value.get("id") if isinstance(value, dict) else None
    sentence = "This line is no message of JSON-RPC 2.0: an object with jsonrpc, method, id and params."
    return (id_ if type(id_) in (int, str) else None), types.INVALID_REQUEST, sentence


def serve(folder: str) -> None:
    """Answer the calls that come in on stdin until it is closed.

    Args:
        folder: The only one whose files are read.
    """
    import anyio

    anyio.run(_served, os.path.realpath(folder))


async def _served(folder: str) -> None:
    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.shared.message import SessionMessage

    one_at_a_time = anyio.CapacityLimiter(1)

    async def tools(context: Any, asked: Any) -> types.ListToolsResult:
        del context, asked
        reads = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema(),
                    annotations=reads,
                )
                for tool in TOOLS.values()
            ]
        )

    async def call(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        del context
        text, is_error = await anyio.to_thread.run_sync(
            in_time, asked.name, asked.arguments or {}, folder, limiter=one_at_a_time
        )
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)

    server = Server(
        "finegauge", version=__version__, instructions=INSTRUCTIONS, on_list_tools=tools, on_call_tool=call
    )

    async def refuse(id_: Any, code: int, sentence: str) -> None:
        error = types.ErrorData(code=code, message=sentence)
        await outgoing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id_, error=error)))

    lines: Any = Lines(_own_input(), refuse)
    async with stdio_server(stdin=lines) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _own_input() -> BinaryIO:
    """Return the client's stream on stdin; processes started here do not inherit it."""
    own = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return own
