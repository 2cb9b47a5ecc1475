"""The charts as text: what they draw is what the command line answers, and a screen reader hears it all."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from finegauge.documents import parse_yaml
from finegauge.prediction.predictor import predict
from finegauge.render import number_format as fmt
from finegauge.run.run import Run
from finegauge.web import drawings, jobs, pages
from finegauge.web.storage import Reply
from tests.e2e.commands import finegauge

pytestmark = pytest.mark.extras

RUN = """\
model: meta-llama/Llama-3.1-8B
method: qlora
seq_len: 1024
micro_batch_size: 4
num_samples: 10000
gpu: L40S
"""
CELL = re.compile(r'<td class="heat-(\w+)" data-says="([^"]*)">')
HOSTILE = '"><script>alert(1)</script>'


def text(reply: Reply) -> str:
    """Return the body as text."""
    assert isinstance(reply.body, str)
    return reply.body


def asked(folder: Path, *arguments: str) -> Any:
    """Return what the command line answers about RUN."""
    path = folder / "run.yaml"
    path.write_text(RUN, "utf-8")
    command, *rest = arguments
    return json.loads(finegauge(command, str(path), *rest, "--json").out)


def test_cells_say_what_the_command_line_answers(tmp_path: Path) -> None:
    body = text(pages.heatmap({"document": RUN}))
    lengths = re.findall(r'data-tokens="(\d+)"', body)
    sizes = re.findall(r'<th scope="row">(\d+)</th>', body)
    cells = CELL.findall(body)
    assert len(cells) == len(lengths) * len(sizes)
    for place in (0, len(lengths) * 5 + 4, len(cells) - 1):
        kind, says = cells[place]
        size, length = sizes[place // len(lengths)], lengths[place % len(lengths)]
        (one,) = asked(tmp_path, "estimate", f"micro_batch_size={size}", f"seq_len={length}")["results"]
        assert kind == one["verdict"]
        memory = f"{one['device_memory_bytes'] / 2**30:.1f}/{one['capacity_bytes'] / 2**30:.1f} GiB"
        assert says.split("|")[1] == memory


def test_the_table_is_the_picture() -> None:
    """A cell's sign, its words for screen readers and its class say the same."""
    body = text(pages.heatmap({"document": RUN}))
    words = {"fits": "fits", "risky": "risky", "will_not_fit": "will not fit"}
    found = re.findall(r'<td class="heat-(\w+)".*?<span aria-hidden="true">(.*?)</span><b>(.*?)</b>'
                       r'<span class="unseen"> GiB, (.*?)</span>', body)  # fmt: skip
    assert len(found) == len(CELL.findall(body))
    for kind, sign, amount, said in found:
        assert sign == drawings.SIGNS[kind]
        assert said == words[kind]
        assert float(amount.replace(",", "")) > 0


def test_gpus_side_by_side_are_estimates(tmp_path: Path) -> None:
    names = ["L40S", "RTX 4090", "H100-SXM5-80GB"]
    body = text(pages.beside({"document": RUN, pages.GPUS_FIELD: ",".join(names)}))
    options = [option for name in names for option in ("--gpu", name)]
    for one in asked(tmp_path, "estimate", *options)["results"]:
        memory = f"{one['device_memory_bytes'] / 2**30:.1f}/{one['capacity_bytes'] / 2**30:.1f} GiB"
        assert memory in body
        if one["quote"] is not None:  # it fits
            assert f">${one['quote']['cheapest_on_demand']['on_demand_usd']:.2f}<" in body
    assert f'value="{",".join(names)}"' in body


def test_a_gpu_without_an_answer_says_why() -> None:
    body = text(
        pages.beside(
            {"document": RUN, "method": "lora", "weights_dtype": "bf16", pages.GPUS_FIELD: "L40S,T4"}
        )
    )
    assert "no bf16" in body


def test_at_most_six() -> None:
    names = "L4,A40,L40S,T4,A100-40GB,A100-80GB,H100"
    assert "7 GPUs are chosen; 6 stand side by side" in text(pages.beside({pages.GPUS_FIELD: names}))


def test_more_gpus_are_estimates_of_so_many(tmp_path: Path) -> None:
    body = text(pages.scaling({"document": RUN}))
    for count, nodes in ((1, 1), (8, 1), (64, 8)):
        (one,) = asked(tmp_path, "estimate", f"num_gpus={count}", f"num_nodes={nodes}")["results"]
        row = re.search(rf'<th scope="row">{count}</th>(.*?)</tr>', body)
        assert row is not None
        assert f"<td>${one['quote']['cheapest_on_demand']['on_demand_usd']:,.2f}</td>" in row[1]
        gib = one["device_memory_bytes"] / 2**30
        assert f"<td>{gib:.{1 if gib >= 10 else 2}f} GiB</td>" in row[1]
    assert body.count('class="mark mark-fits"') == 28


def test_the_time_line_adds_up_to_the_step() -> None:
    body = text(pages.timeline({"document": RUN}))
    for depth in (0, 1, 2):
        widths = re.findall(rf'width="([\d.]+)%" height="44" role="img".*?depth-{depth}"', body)
        assert sum(map(float, widths)) == pytest.approx(100.0, abs=0.5)
    stages = re.findall(r'aria-label="(\w+): ([\d.]+ m?s),', body)
    run = Run.from_fields(parse_yaml(RUN, "run.yaml"))
    step = predict(run).step_time_s
    assert stages == [(stage, fmt.duration(step[stage])) for stage in ("forward", "backward", "optimizer")]


def test_the_scatter_holds_the_plans_of_the_answer() -> None:
    body = text(pages.plan({"document": RUN, "plan_within_h": "5"}))
    drawn = body[body.index('<figure class="chart"') : body.index("</figure>")]
    assert drawn.count("mark-taken") == 1
    assert drawn.count("mark-own") <= 1
    assert drawn.count("line-limit") == 1  # the five hours
    usd = re.findall(r"On the front: [^\"]*, \$([\d.]+)\"", drawn)
    assert usd == sorted(usd, key=float, reverse=True)  # each that takes longer costs less


def test_bars_of_single_changes_start_in_the_middle() -> None:
    body = text(pages.whatif({"document": RUN}))
    bars = re.findall(r'<rect class="(good|bad)" x="([\d.]+)%" width="([\d.]+)%"', body)
    assert len(bars) > 20
    for tone, start, width in bars:
        end = float(start) + float(width)
        assert (end if tone == "good" else float(start)) == pytest.approx(50.0, abs=0.02)
        assert 0.0 <= float(start) <= end <= 100.01


@pytest.mark.parametrize("name", jobs.CHARTS)
def test_what_is_wrong_is_a_sentence_and_never_markup(name: str) -> None:
    for form in ({"model": HOSTILE}, {"gpu": HOSTILE}, {pages.GPUS_FIELD: HOSTILE, "micro_batch_size": "x"}):
        body = text(jobs.page(name, form))
        assert 'class="problem"' in body
        assert "<script>" not in body


@pytest.mark.parametrize(
    "fields",
    [{"phase": "dpo"}, {"num_samples": ""}, {"gpu": "MI300X"}, {"method": "full", "num_gpus": "8"},
     {"model": "meta-llama/Llama-3.1-70B", "method": "full"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", jobs.CHARTS)
def test_all_runs_are_drawn(name: str, fields: dict[str, str]) -> None:
    body = text(getattr(pages, name)({"document": RUN.replace("num_samples: 10000\n", ""), **fields}))
    assert "problem" not in body
    assert "style=" not in body  # the page forbids it
    assert "nan" not in body
