"""A real session of the Model Context Protocol over stdin and stdout, with the protocol's own client."""

import json
import sys
from pathlib import Path

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import CallToolResult, ListToolsResult, TextContent

from tests.e2e.commands import finegauge


async def _session(folder: Path) -> tuple[ListToolsResult, list[CallToolResult]]:
    server = StdioServerParameters(command=sys.executable, args=["-m", "finegauge", "mcp"], cwd=folder)
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        await client.initialize()
        tools = await client.list_tools()
        answers = [
            await client.call_tool("check", {"file": "run.yaml", "overrides": {"micro_batch_size": 64}}),
            await client.call_tool("check", {"file": "../run.yaml"}),
            await client.call_tool("gpus", {"pattern": "a40"}),
        ]
    return tools, answers


def text_of(answer: CallToolResult) -> str:
    (content,) = answer.content
    assert isinstance(content, TextContent)
    return content.text


def test_a_session(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: llama-3-8b\nmethod: qlora\ngpu: A40\n")
    tools, (checked, refused, gpus) = anyio.run(_session, tmp_path)
    assert [tool.name for tool in tools.tools] == ["estimate", "check", "max_batch", "plan", "models", "gpus"]
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.tools)
    assert json.loads(text_of(checked))["results"][0]["verdict"] == "will_not_fit"
    assert not checked.is_error
    assert refused.is_error
    assert "lies outside the folder" in text_of(refused)
    assert json.loads(text_of(gpus))["num_found"] >= 1


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegauge.cli.servers.find_spec", lambda _: None)
    done = finegauge("mcp")
    assert done.code == 64
    assert "pip install 'finegauge[mcp]'" in done.err
