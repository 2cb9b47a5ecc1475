"""Every reference example of a format that is read, read to what was expected of it, field by field."""

from typing import Any

import pytest
import yaml

from finegauge.errors import FileFormatError
from finegauge.formats.reading import companion_fields, describe
from tests.shared import SHARED, needs_shared
from tests.unit.formats.neutral import neutral, wrong

CONFIGS = SHARED / "reference" / "configs"
LAUNCHED = {  # what the launcher alone says
    "nemo/automodel_peft_8b.yaml": ("num_gpus=8",),
    "axolotl/lora_8b_packed.yaml": (),
}


def expected() -> dict[str, dict[str, Any]]:
    """Return the expected readings by file; none where they are not at hand."""
    listing = CONFIGS / "expected.yaml"
    return yaml.safe_load(listing.read_text()) if listing.is_file() else {}


EXPECTED = expected()
RUNS = [name for name in EXPECTED if not name.startswith(("traps/", "accelerate/"))]
COMPANIONS = [name for name in EXPECTED if name.startswith("accelerate/")]


@needs_shared
@pytest.mark.parametrize("name", RUNS)
def test_run_is_read_as_expected(name: str) -> None:
    run = describe(CONFIGS / name, LAUNCHED.get(name, ()))
    assert wrong(run, neutral(EXPECTED[name])) == {}


@needs_shared
@pytest.mark.parametrize("name", COMPANIONS)
def test_launcher_file_is_read_as_expected(name: str) -> None:
    found = companion_fields(str(CONFIGS / name))
    assert found is not None
    wanted = neutral(EXPECTED[name])
    assert {field: found[1].get(field, 1 if field == "num_nodes" else None) for field in wanted} == wanted


@needs_shared
def test_defaults_are_told_from_what_the_file_states() -> None:
    run = describe(CONFIGS / "trl" / "sft_full_defaults.yaml")
    stated = {name for name in run.stated_fields() if run.origins[name] == "file"}
    assert stated == {"model", "framework", "num_samples"}  # of the data set that it names
    packed = describe(CONFIGS / "axolotl" / "lora_8b_packed.yaml")
    assert packed.origins["adapter_dtype"] == "framework default: Axolotl"
    assert packed.origins["padding"] == "file"


@needs_shared
@pytest.mark.parametrize("trap", ["unsafe_tag.yaml", "alias_bomb.yaml"])
def test_trap_is_refused(trap: str) -> None:
    with pytest.raises(FileFormatError, match=r"the tag|too many aliases"):
        describe(CONFIGS / "traps" / trap)


def test_the_expected_names_all_lead_somewhere() -> None:
    fields = neutral({"rank": 8, "checkpointing": "full+cpu-offload", "targets": "*_proj", "gpus": None})
    assert fields["activation_checkpointing"] == "offload"
    assert (fields["lora_rank"], len(fields["lora_targets"])) == (8, 7)
    assert "num_gpus" not in fields
