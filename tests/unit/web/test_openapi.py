"""The OpenAPI document is right, and nothing that it allows or forbids breaks the server."""

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from finegauge.render.schema import schema
from finegauge.run.run import FIELDS
from finegauge.web import jobs
from finegauge.web.api import API, LISTINGS, QUESTIONS, openapi
from finegauge.web.app import create_app
from tests.unit.web.inline import Inline

CHECKED = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
HERE = {"Host": "127.0.0.1:8317"}
FEW = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
REFUSED = {"expected-statuses": ["400", "413", "415", "422"]}
COVERED = ("estimate", "plan")  # every value of every argument
UNCOVERED = [
    {"include-name": f"POST {API}/{name}", "phases": {"coverage": {"enabled": False}}}
    for name in QUESTIONS
    if name not in COVERED
]
CONFIG = schemathesis.Config.from_dict(
    {"checks": {"negative_data_rejection": REFUSED}, "operations": UNCOVERED}
)
DOCUMENT = schemathesis.openapi.from_asgi("/openapi.json", create_app(Inline()), config=CONFIG, headers=HERE)
DOCUMENT.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
# The fields of a run are covered where an estimate is asked for: all questions read them in the same way.
_PLAN = DOCUMENT.raw_schema["paths"][f"{API}/plan"]["post"]["requestBody"]["content"]["application/json"]
_PLAN["schema"]["properties"]["run"] = {
    "const": {"model": "llama-3-8b", "method": "lora", "num_samples": 500}
}
_PLAN["schema"]["properties"]["overrides"] = {"const": {"method": "qlora"}}


@DOCUMENT.parametrize()
@FEW
def test_requests_made_from_the_document(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(checks=CHECKED, headers=HERE)


def test_the_document_describes_what_is_asked_and_answered() -> None:
    document = openapi()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {f"{API}/{name}" for name in (*QUESTIONS, *LISTINGS)}
    for name, (_, arguments) in QUESTIONS.items():
        body = document["paths"][f"{API}/{name}"]["post"]["requestBody"]["content"]["application/json"]
        assert set(body["schema"]["properties"]) == set(arguments)
        assert body["example"]
    for name, (_, arguments) in LISTINGS.items():
        asked = document["paths"][f"{API}/{name}"]["get"]["parameters"]
        assert [one["name"] for one in asked] == list(arguments)
    assert set(document["components"]["schemas"]["fields"]["properties"]) == set(FIELDS)


def test_every_reference_leads_somewhere() -> None:
    document = openapi()

    def references(part: Any) -> Any:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        found = [part["$ref"]] if isinstance(part, dict) and "$ref" in part else []
        return found + [one for each in inner for one in references(each)]

    assert len(references(document)) > 50
    for reference in references(document):
        place: Any = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]


@pytest.mark.parametrize("name", QUESTIONS)
def test_its_examples_are_answered_as_it_says(name: str) -> None:
    content = openapi()["paths"][f"{API}/{name}"]["post"]
    example = content["requestBody"]["content"]["application/json"]["example"]
    reply = jobs.question(name, example)
    assert reply.status == 200, reply.body
    placed = content["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    Draft202012Validator(schema(placed)).validate(json.loads(reply.body))


USUAL: dict[str, list[Any]] = {
    "model": ["llama-3-8b", "mixtral-8x7b", "mamba-2.8b", "llama-3-8b "],
    "method": ["full", "lora", "qlora", "freeze", "dora"],
    "phase": ["sft", "dpo", "ppo", "grpo", "reward", "prefill", "decode"],
    "gpu": ["A40", "H100", "H200", "MI300X"],
    "dataset": ["math_14k", "commonsense_15k"],
    "sharding": ["none", "zero1", "zero2", "zero3", "fsdp", "hybrid"],
    "activation_checkpointing": ["none", "full", "selective"],
    "attention": ["eager", "sdpa", "flash"],
    "optimizer": ["adamw", "sgd", "adamw_8bit", "paged_adamw_8bit"],
    "weights_dtype": ["fp32", "bf16", "nf4", "int8"],
    "packing": [True, False],
    "cpu_offload": ["none", "optimizer", "weights"],
}
NUMBERS = (
    *("micro_batch_size", "seq_len", "lora_rank", "num_gpus", "num_nodes", "tensor_parallel", "max_steps"),
    *("pipeline_parallel", "context_parallel", "expert_parallel", "gradient_accumulation_steps", "epochs"),
    *("num_samples", "num_experts_per_tok", "data_parallel_shard", "max_new_tokens", "eval_samples"),
)
SIZES = st.sampled_from([1, 2, 4, 8, 16, 64, 512, 2048])
ODD = st.sampled_from([0, 1, 3, 7, 511, 65_536, 10**6, 10**12, -1, 0.5, 1e308, "", "many", True, [1, 2]])
RUNS = st.builds(
    lambda *parts: {name: value for part in parts for name, value in part.items()},
    st.fixed_dictionaries({name: st.sampled_from(USUAL[name]) for name in ("model", "method", "gpu")}),
    st.lists(st.sampled_from(list(USUAL)), max_size=3).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(USUAL[name]) for name in names})
    ),
    st.dictionaries(st.sampled_from(NUMBERS), SIZES, max_size=3),
    st.dictionaries(st.sampled_from(NUMBERS), ODD, max_size=1),
)


@settings(FEW, max_examples=60)
@given(RUNS, st.sampled_from(["read", "estimate", "explain", "check", "max-batch"]))
def test_no_run_breaks_an_answer(run: dict[str, Any], name: str) -> None:
    reply = jobs.question(name, {"run": run})
    assert reply.status in (200, 422), (run, reply.body)
    content = json.loads(reply.body)
    assert content.get("error") or content["results"]
