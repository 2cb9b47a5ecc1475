"""The examples of docs/catalogue.md work as printed."""

import re
from pathlib import Path

from finegauge.catalogue.datasets import dataset
from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.models import model
from finegauge.catalogue.offers import offers
from finegauge.model.families import architecture
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

PAGE = Path(__file__).parents[3] / "docs" / "catalogue.md"


def test_examples_of_user_rows(home: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for kind, text in zip(("gpus", "offers", "models", "datasets"), examples, strict=True):
        (home / kind).mkdir(parents=True)
        (home / kind / "example.yaml").write_text(text, "utf-8")
    assert gpu("x900").nvlink_bytes_per_s == 1.8e12
    assert (
        predict(Run.from_fields({"model": "llama-3-8b", "method": "lora", "gpu": "x900"}, {})).tokens_per_s
        > 0
    )
    assert offers("a40", provider="basement")[0].on_demand_usd_per_h == 0.40
    assert architecture(model("mine").config).num_parameters == 1_100_048_384
    assert dataset("mine").num_samples == 1000
