"""A profile reads back from JSON as it was, to the last bit."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegauge.errors import FileFormatError
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.run.run import FROM_COMMAND_LINE, Run
from finegauge.store.document import profile_document, profile_of, run_document, run_of

RUN = Run.from_fields(
    {"model": "mixtral-8x7b", "method": "qlora", "lora_targets": ["q_proj", "w1"], "seq_len": 512},
    {"seq_len": FROM_COMMAND_LINE},
    warnings=("a warning",),
)
NUMBERS = st.floats(allow_nan=False)
NAMES = st.text(max_size=8)
BREAKDOWNS = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple), NUMBERS, max_size=4).map(
    Breakdown
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES.filter(lambda n: n != "float"), inner),
    max_leaves=6,
)


def through_json(profile: Profile) -> Profile:
    return profile_of(json.loads(json.dumps(profile_document(profile), allow_nan=False)))


@given(
    st.fixed_dictionaries(
        {
            "outcome": st.sampled_from(("completed", "out_of_memory", "failed", "interrupted")),
            "reason": NAMES,
            "peak_memory_bytes": BREAKDOWNS,
            "phase_memory_bytes": BREAKDOWNS,
            "step_time_s": BREAKDOWNS,
            "step_energy_j": BREAKDOWNS,
            "step_times_s": st.lists(NUMBERS, max_size=3).map(tuple),
            "step_flops": NUMBERS,
            "fingerprint": st.dictionaries(NAMES, NAMES, max_size=3),
            "observations": st.dictionaries(NAMES.filter(lambda n: n != "float"), JSON, max_size=3),
        }
    )
)
def test_any_profile_reads_back_equal(quantities: dict[str, Any]) -> None:
    profile = Profile(run=RUN, source=Source("measured", "here"), **quantities)
    back = through_json(profile)
    assert back == profile
    assert back.run.origins == RUN.origins
    assert back.run.warnings == ("a warning",)


def test_every_field_is_written() -> None:
    profile = Profile(run=RUN, source=Source("measured", "here"))
    assert set(profile_document(profile)) == {*Profile._fields} - {"explanation"}


def test_intervals_and_assumptions_read_back() -> None:
    source = Source("predicted", "tables", Interval(0.9, 1.1), None, ("one", "two"))
    assert through_json(Profile(run=RUN, source=source)).source == source


def test_numbers_that_are_none_read_back() -> None:
    profile = Profile(
        run=RUN, source=Source("measured", "here"), observations={"losses": [math.nan, math.inf, -math.inf]}
    )
    losses = through_json(profile).observations["losses"]
    assert math.isnan(losses[0])
    assert losses[1:] == [math.inf, -math.inf]


def test_a_run_reads_back_where_its_model_is_gone(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, '
        '"num_hidden_layers": 2, "num_attention_heads": 4}',
        "utf-8",
    )
    run = Run(model=str(config), method="lora", pipeline_parallel=2)
    document = json.loads(json.dumps(run_document(run)))
    config.unlink()
    assert run_of(document) == run


def test_null_is_the_default_or_refused() -> None:
    document = run_document(Run(model="tinyllama", method="lora", seq_len=512, gradient_accumulation_steps=4))
    for name, default in (("seq_len", 2048), ("gradient_accumulation_steps", 1), ("epochs", 1.0)):
        fields = {**document["fields"], name: None}
        assert getattr(run_of({**document, "fields": fields}), name) == default
    for name in ("model", "method"):
        with pytest.raises(ValueError, match=f"states no {name}"):
            run_of({**document, "fields": {**document["fields"], name: None}})


def test_a_field_that_is_newer_than_the_document_has_its_default() -> None:
    document = run_document(RUN)
    del document["fields"]["num_generations"]
    assert run_of(document) == RUN


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("run"),
        lambda d: d.pop("source"),
        lambda d: d.update(step_time_s=3),
        lambda d: d.update(unheard_of=1),
        lambda d: d.update(run=[]),
        lambda d: d["run"].pop("origins"),
    ],
)
def test_what_is_no_profile_is_refused(damage: Any) -> None:
    document = profile_document(Profile(run=RUN, source=Source("measured", "here"))._replace())
    damage(document)
    with pytest.raises(FileFormatError, match="no profile"):
        profile_of(document)
