"""A server of the Model Context Protocol over stdin and stdout, by which assistants ask FineGauge.

It reads, in the folder where it was started and nowhere else, and writes nothing. A wrong question is
answered by one sentence, marked as an error, which an assistant can act on. One question is answered at a
time, beside the protocol, so that a long one does not stop the conversation.
"""

import os
from typing import Any

from finegauge.answers.arguments import Asked
from finegauge.errors import FineGaugeError, did_you_mean, shown
from finegauge.mcp.tools import TOOLS

MAX_ARGUMENTS_BYTES = 100_000
INSTRUCTIONS = (
    "FineGauge predicts what fine-tuning a language model takes: memory, time, cost, energy. Figures are in "
    "SI units, the unit is the end of each name; null is not known. Predictions are not measurements: the "
    "p10 and p90 beside a figure say how sure it is."
)


def answered(name: str, arguments: dict[str, Any], folder: str) -> tuple[str, bool]:
    """Return the text that answers one call, and whether it is an error."""
    import json

    if name not in TOOLS:
        return f"No tool named {shown(name)}.{did_you_mean(name, TOOLS)} There are {', '.join(TOOLS)}.", True
    try:
        if len(json.dumps(arguments)) > MAX_ARGUMENTS_BYTES:
            return f"The arguments are too long; at most {MAX_ARGUMENTS_BYTES:,} bytes are read.", True
        return TOOLS[name].call(Asked(arguments, folder)), False
    except FineGaugeError as error:
        return " ".join(str(error).split()), True
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return f"Internal error ({what}); please report it.", True


def serve(folder: str) -> None:
    """Answer the calls that come in on stdin until it is closed.

    Args:
        folder: The only one whose files are read.
    """
    import anyio

    anyio.run(_served, os.path.realpath(folder))


async def _served(folder: str) -> None:
    """Answer calls until the client goes."""
    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    from finegauge import __version__

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
            answered, asked.name, asked.arguments or {}, folder, limiter=one_at_a_time
        )
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)

    server = Server(
        "finegauge", version=__version__, instructions=INSTRUCTIONS, on_list_tools=tools, on_call_tool=call
    )
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
