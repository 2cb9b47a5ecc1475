"""The commands `models`, `gpus`, `offers`, `datasets`: lists, filters, one row, JSON, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from finegauge.catalogue import refresh
from finegauge.cli.catalogue import datasets, gpus, models, offers
from finegauge.errors import FineGaugeError


def run(command: click.Command, *args: str) -> Result:
    return CliRunner().invoke(command, args, catch_exceptions=False, terminal_width=100)


def rows(command: click.Command, *args: str) -> Any:
    result = run(command, *args, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("command", "footer"),
    [
        (gpus, r"(\d\d+) of \1 GPUs"),
        (models, r"(\d{3}) of \1 models"),
        (datasets, r"(\d+) of \1 data sets"),
        (offers, r"(1,\d+) of \1 offers"),
    ],
)
def test_lists_fit_100_columns(command: click.Command, footer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    result = run(command)
    assert result.exit_code == 0
    assert re.search(footer, result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_gpus_filter() -> None:
    assert {row["vendor"] for row in rows(gpus, "--vendor", "amd")} == {"AMD"}
    assert {row["name"] for row in rows(gpus, "h100")} == {
        "H100-PCIE-80GB",
        "H100-SXM5-80GB",
        "H100-SXM-96GB-HBM2e",
        "H100-NVL-94GB",
    }


def test_gpu_show() -> None:
    shown = run(gpus, "show", "h100").stdout
    assert "79.2 GiB usable (torch)" in shown
    assert "bf16 989.4" in shown
    assert "read 2026-11-20" in shown
    row = rows(gpus, "show", "h100")
    assert row["flops_per_s"]["bf16"] == 989.4e12
    assert row["source"]


@pytest.mark.parametrize("name", ["A400", "none.yaml"])
def test_gpu_show_refuses(name: str) -> None:
    with pytest.raises(FineGaugeError, match=r"A400|No file"):
        run(gpus, "show", name)


def test_models_filter_and_show() -> None:
    assert {row["name"] for row in rows(models, "blackmamba")} == {"Zyphra/BlackMamba-2.8B"}
    row = rows(models, "show", "mixtral-8x7b")
    assert row["model_type"] == "mixtral"
    assert row["parameters"] == 46_702_792_704
    assert row["active_parameters"] == 12_879_925_248
    assert sum(row["layers"].values()) == 32
    assert "46,702,792,704 (46.7 B) as transformers counts" in run(models, "show", "mixtral-8x7b").stdout


def test_model_show_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = rows(models, "show", "llama-3-8b")["config"]
    path.write_text(json.dumps(config), "utf-8")
    assert rows(models, "show", str(path))["parameters"] == 8_030_261_248


def test_offers_filter_and_sort() -> None:
    found = rows(offers, "--gpu", "h100", "--provider", "aws", "--count", "8")
    assert [row["instance_type"] for row in found] == ["p5.48xlarge"]
    assert found[0]["source"].startswith("aws/karpenter-provider-aws")
    spot = rows(offers, "--gpu", "l4", "--spot", "--sort", "price")
    ranked = [row["spot_usd_per_h"] for row in spot if not row["outlier"]]
    assert ranked == sorted(ranked)
    assert {row["region"] for row in rows(offers, "--region", "eastus")} == {"eastus"}


@pytest.mark.parametrize("sort", ["price", "gpu-price", "provider", "date"])
def test_offers_sorts(sort: str) -> None:
    assert run(offers, "--gpu", "a10", "--sort", sort, "--limit", "3").exit_code == 0


def test_offers_warn_of_age() -> None:
    result = run(offers, "--gpu", "h100", "--provider", "aws")
    assert "2026-07-20" in result.stdout
    assert "finegauge offers --refresh" in result.stderr


def test_offers_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    done = refresh.Refreshed(
        num_offers=3, fetched=("aws",), failed=("gcp: HTTP 429",), path="x", date="2026-11-20"
    )
    monkeypatch.setattr(refresh, "refresh_offers", lambda: done)
    result = run(offers, "--refresh", "--limit", "1")
    assert "Fetched 3 offers of aws (2026-11-20)." in result.stdout
    assert "Not fetched: gcp: HTTP 429" in result.stderr
    json.loads(run(offers, "--refresh", "--json", "--gpu", "a40").stdout)


def test_dataset_show() -> None:
    shown = run(datasets, "show", "math_14k").stdout
    assert "median 174, mean 187, longest 1470" in shown
    assert "141-175" in shown
    assert "median 186" in run(datasets, "show", "gsm8k_train").stdout
    assert rows(datasets, "show", "cs")["num_samples"] == 15_119


def test_help_says_what_to_type() -> None:
    for command in (gpus, models, datasets):
        assert "show NAME" in " ".join(run(command, "--help").stdout.split())


def test_a_list_is_searched_by_words() -> None:
    assert [row["name"] for row in rows(models, "olmo2 1b")] == ["allenai/OLMo-2-0425-1B"]
    assert "openhermes-2.5" in [row["name"] for row in rows(datasets, "open hermes")]
