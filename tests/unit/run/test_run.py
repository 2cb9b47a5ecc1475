"""A run is complete, consistent, and knows where each field comes from."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError, UnknownKeyError, UnknownNameError
from finegauge.run import rules
from finegauge.run.run import FIELDS, FREE, FROM_CALLER, FROM_COMMAND_LINE, FROM_DEFAULT, FROM_FILE, Run


def run(**fields: Any) -> Run:
    return Run(**{"model": "mixtral-8x7b", "method": "qlora", **fields})


def test_what_is_not_stated_follows_from_what_is() -> None:
    qlora = run(lora_rank=8)
    assert (qlora.weights_dtype, qlora.lora_alpha, qlora.lora_targets) == ("nf4_dq", 16.0, ("all-linear",))
    assert run(method="full").weights_dtype == "bf16"
    assert run(method="freeze").freeze_trainable_layers == 2
    assert run(kernels="liger").loss == "fused"
    assert run(dataset="math_14k").padding == "longest"
    assert run().padding == "max"


@pytest.mark.parametrize(
    ("version", "implementation", "experts", "quantized"),
    [
        ("4.40", "foreach", "eager", True),
        ("4.56.1", "fused", "eager", True),
        ("5.23", "fused", "grouped_mm", False),
    ],
)
def test_software_version_decides(version: str, implementation: str, experts: str, quantized: bool) -> None:
    of_its_time = run(transformers_version=version)
    assert of_its_time.optimizer_implementation == implementation
    assert of_its_time.experts_implementation == experts
    assert of_its_time.quantize_experts is quantized


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"weights_dtype": "bf16"}, "method=qlora needs weights_dtype nf4_dq or nf4 or int8, not bf16"),
        ({"method": "full", "weights_dtype": "nf4"}, "weights_dtype=nf4 cannot be used with method=full"),
        ({"method": "lora", "weights_dtype": "mxfp4"}, "trainer refuses such weights"),
        ({"method": "full", "lora_rank": 8}, "lora_rank is stated, but method=full trains no adapters"),
        ({"freeze_trainable_layers": 3}, "freeze_trainable_layers is stated, but method=qlora"),
        ({"method": "lora", "upcast_unquantized": True}, "upcast_unquantized needs quantised weights"),
        ({"packing": True, "padding": "longest"}, "padding=longest cannot hold"),
        ({"micro_batch_size": 0}, "micro_batch_size=0 is too small"),
        ({"micro_batch_size": -4}, "micro_batch_size=-4 is too small"),
        ({"seq_len": 10**9}, "seq_len=1000000000 is too large"),
        ({"seq_len": "two"}, "seq_len='two' is not a whole number"),
        ({"epochs": float("nan")}, "epochs=nan is not a finite number"),
        ({"num_gpus": 0}, "num_gpus=0 is too small"),
        ({"transformers_version": "five"}, "transformers_version: 'five' is not a version"),
        ({"model": None}, "does not state its model"),
        ({"method": None}, "does not state its method"),
        ({"method": "qlorra"}, "Did you mean 'qlora'"),
    ],
)
def test_contradictions_and_absurdities_are_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FieldError) as caught:
        run(**fields)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 64


def test_transformers_quantiser_of_mxfp4_says_that_it_cannot_train() -> None:
    from transformers import Mxfp4Config
    from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer

    assert not Mxfp4HfQuantizer(Mxfp4Config(), pre_quantized=True).is_trainable


def test_origins() -> None:
    built = Run.from_fields(
        {"model": "qwen3-8b", "method": "lora", "lora_rank": 8}, {"lora_rank": FROM_COMMAND_LINE}
    )
    assert built.origins["model"] == FROM_FILE
    assert built.origins["lora_rank"] == FROM_COMMAND_LINE
    assert built.origins["seq_len"] == FROM_DEFAULT
    assert set(built.origins) == set(FIELDS)
    assert run(seq_len=512).origins["seq_len"] == FROM_CALLER


def test_origins_and_warnings_do_not_count_as_equality() -> None:
    assert run() == Run.from_fields({"model": "mixtral-8x7b", "method": "qlora"}, warnings=("a",))
    assert hash(run()) == hash(run().replace())


def test_replace_checks_again_and_lets_defaults_follow() -> None:
    assert run(lora_rank=8).replace(lora_rank=32).lora_alpha == 64.0
    with pytest.raises(FieldError, match="too small"):
        run().replace(seq_len=-1)
    assert run().replace(FROM_COMMAND_LINE, gpu="H100").origins["gpu"] == FROM_COMMAND_LINE
    assert run(gpu="A40").replace(gpu=None).gpu is None


@pytest.mark.parametrize(
    "asked",
    [
        run(provider="verda", lora_rank=8),
        run(phase="dpo", seq_len=512, micro_batch_size=3),
        run(phase="grpo", max_new_tokens=64, num_gpus=4, sharding="zero3", gpu="h100"),
        run(phase="decode", method="full", micro_batch_size=16),
        run(packing=True, dataset="math_14k", tensor_parallel=2, pipeline_parallel=2, num_gpus=4),
    ],
)
@pytest.mark.parametrize(
    "changes", [{"micro_batch_size": 6}, {"provider": "Verda", "region": "fin-01"}, {"region": None}]
)
def test_a_field_that_settles_nothing_is_replaced_as_any_other(asked: Run, changes: dict[str, Any]) -> None:
    stated = asked.stated_fields()
    origins = {name: asked.origins[name] for name in stated} | dict.fromkeys(changes, FROM_CALLER)
    settled = Run.from_fields(stated | changes, origins, asked.warnings)
    found = asked.replace(**changes)
    assert found.fields() == settled.fields()
    assert list(found.origins.items()) == list(settled.origins.items())
    with pytest.raises(FieldError, match="too small"):
        asked.replace(micro_batch_size=0)


@pytest.mark.parametrize("phase", FIELDS["phase"].options)
def test_no_rule_reads_a_field_that_settles_nothing(phase: str) -> None:
    class Watched(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            assert name not in FREE, name
            return super().__getitem__(name)

        def get(self, name: str, default: Any = None) -> Any:
            assert name not in FREE, name
            return super().get(name, default)

    asked = run(phase=phase, num_gpus=4, tensor_parallel=2)
    values = Watched(asked.fields())
    rules.settle(values, asked.origins)
    rules.fit_model(values, asked.config)


def test_another_method_drops_what_only_the_old_one_needed() -> None:
    full = run(lora_rank=8, weights_dtype="nf4", seq_len=512).replace(method="full")
    assert (full.weights_dtype, full.origins["lora_rank"], full.seq_len) == ("bf16", FROM_DEFAULT, 512)
    assert run(lora_rank=8).replace(method="lora").lora_rank == 8
    assert run(method="full", weights_dtype="fp32").replace(method="lora").weights_dtype == "fp32"
    assert run(method="full", weights_dtype="fp32").replace(method="qlora").weights_dtype == "nf4_dq"
    assert run(weights_dtype="int8").replace(method="gptq_lora").weights_dtype == "gptq4"
    assert run(dataset="math_14k", padding="longest").replace(packing=True).padding == "max"


def test_unknown_field_suggests_its_neighbour() -> None:
    with pytest.raises(UnknownKeyError, match="Did you mean 'micro_batch_size'"):
        Run.from_fields({"model": "qwen3-8b", "method": "lora", "micro_batchsize": 2})


def test_degrees_multiply_to_the_gpus() -> None:
    assert run(num_gpus=8).data_parallel_replicate == 8
    sharded = run(num_gpus=8, num_nodes=2, sharding="zero3")
    assert (sharded.data_parallel_shard, sharded.data_parallel_replicate) == (8, 1)
    hybrid = run(num_gpus=16, data_parallel_replicate=2, sharding="hybrid")
    assert (hybrid.data_parallel_shard, hybrid.data_parallel) == (8, 16)
    assert run(data_parallel_shard=4).num_gpus == 4
    assert (
        run(
            num_gpus=8, tensor_parallel=2, micro_batch_size=3, gradient_accumulation_steps=2
        ).global_batch_size
        == 24
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"num_gpus": 8, "tensor_parallel": 3},
        {"num_gpus": 1, "tensor_parallel": 2},
        {"num_gpus": 8, "data_parallel_shard": 2, "data_parallel_replicate": 2},
        {"num_gpus": 3, "num_nodes": 2},
    ],
)
def test_degrees_that_do_not_multiply_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(FieldError, match="num_gpus"):
        run(**fields)


def test_heads_experts_and_layers_must_divide() -> None:
    with pytest.raises(
        FieldError, match="tensor_parallel=3 does not divide num_key_value_heads=8 of mixtral-8x7b"
    ):
        run(tensor_parallel=3)
    with pytest.raises(FieldError, match="use 1, 2, 4 or 8"):
        run(tensor_parallel=16)
    with pytest.raises(FieldError, match="num_experts_per_tok=9 exceeds the 8 experts"):
        run(num_experts_per_tok=9)
    with pytest.raises(FieldError, match="expert_parallel=3 does not divide the 8 experts"):
        run(expert_parallel=3)
    with pytest.raises(FieldError, match="pipeline_parallel=64 exceeds the 32 layers"):
        run(pipeline_parallel=64)
    with pytest.raises(FieldError, match="has no experts"):
        run(model="llama-2-7b", num_experts_per_tok=2)
    with pytest.raises(FieldError, match="lora_rank=9999 exceeds hidden_size=4096"):
        run(lora_rank=9999).check_names()


@pytest.mark.parametrize("model", ["mixtral-8x7b", "blackmamba-2.8b"])
def test_all_experts_is_dense_fine_tuning(model: str) -> None:
    assert Run(model=model, method="full", num_experts_per_tok="all").num_experts_per_tok == 8  # type: ignore[arg-type]


def test_names_are_looked_up() -> None:
    run(gpu="A40", dataset="math_14k").check_names()
    assert run().config["model_type"] == "mixtral"
    assert run().trains_adapters
    for fields in ({"model": "mixtrall-8x7b"}, {"gpu": "A400"}, {"dataset": "math_15k"}):
        with pytest.raises(UnknownNameError, match="Did you mean"):
            run(**fields).check_names()


def test_shows_itself_as_the_call_that_makes_it() -> None:
    assert repr(run(seq_len=512)) == "Run(model='mixtral-8x7b', method='qlora', seq_len=512)"
    assert eval(repr(run(seq_len=512)), {"Run": Run}) == run(seq_len=512)


def test_the_page_of_methods_names_every_adapter_and_optimizer() -> None:
    page = (Path(__file__).parents[3] / "docs" / "methods.md").read_text("utf-8")
    assert [name for name in FIELDS["adapter"].options if f"| `{name}` |" not in page] == []
    assert [name for name in FIELDS["optimizer"].options if f"`{name}`" not in page] == [
        *("ademamix_8bit", "paged_ademamix", "paged_ademamix_8bit")
    ]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"method": "full", "adapter": "dora"}, "trains no adapters"),
        ({"method": "qlora", "adapter": "loha"}, "PEFT has none over such weights"),
        ({"method": "gptq_lora", "adapter": "vera"}, "PEFT has none over such weights"),
        ({"method": "lora", "adapter": "ia3", "lora_rank": 8}, "lora_rank is stated, but adapter=ia3"),
        ({"method": "lora", "adapter": "p_tuning", "packing": True}, "puts a prompt before every sequence"),
        ({"method": "lora", "adapter": "prompt_tuning", "phase": "grpo"}, "not predicted for phase=grpo"),
        ({"method": "lora", "adapter": "hra"}, "adapter='hra' is unknown"),
    ],
)
def test_adapters_that_cannot_be_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(FieldError, match=match):
        Run(model="llama-3-8b", **fields)


def test_another_adapter_forgets_the_sizes_of_the_last() -> None:
    run = Run(model="llama-3-8b", method="lora", adapter="oft", adapter_size=16)
    assert run.replace(adapter="boft").adapter_size == 4
    assert Run(model="llama-3-8b", method="lora", lora_rank=8).replace(adapter="oft").adapter_size == 32
    assert run.replace(method="full").adapter == "lora"


def test_optimizers_of_the_backward_pass_say_how_they_update() -> None:
    lomo = Run(model="llama-3-8b", method="full", optimizer="lomo")
    assert lomo.optimizer_implementation == "in_backward"
    assert lomo.replace(optimizer="adamw").optimizer_implementation == "fused"
    with pytest.raises(FieldError, match="updates in the backward pass"):
        lomo.replace(optimizer_implementation="fused")


def test_only_projections_have_a_rank() -> None:
    galore = Run(model="llama-3-8b", method="full", optimizer="galore_adamw", optimizer_rank=64)
    assert galore.replace(optimizer="muon").optimizer_rank is None
    assert galore.replace(micro_batch_size=2).optimizer_rank == 64
    with pytest.raises(FieldError, match="optimizer_rank is stated"):
        Run(model="llama-3-8b", method="full", optimizer="muon", optimizer_rank=64)
