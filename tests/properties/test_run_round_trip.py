"""Any valid run survives its own YAML; no bytes bring the reader down."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from finegauge.errors import FieldError, FineGaugeError
from finegauge.formats.reading import read
from finegauge.run.run import FIELDS as RUN_FIELDS
from finegauge.run.run import FROM_COMMAND_LINE, Run

MODELS = ("mixtral-8x7b", "qwen3-8b", "blackmamba-2.8b", "llama-2-7b")
WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20)
OPTIONS = {name: tuple(field.options) for name, field in RUN_FIELDS.items()}
DEGREES = st.sampled_from((1, 1, 2, 4))

OPTIONAL_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "phase": st.sampled_from(OPTIONS["phase"]),
    "lora_rank": st.integers(1, 512),
    "lora_alpha": st.floats(0.1, 1e5),
    "lora_dropout": st.floats(0, 1),
    "lora_targets": st.lists(st.sampled_from(("q_proj", "v_proj", "w1", "all-linear")), max_size=3),
    "trainable_extra": st.lists(st.sampled_from(OPTIONS["trainable_extra"])),
    "freeze_trainable_layers": st.integers(1, 30),
    "weights_dtype": st.sampled_from(OPTIONS["weights_dtype"]),
    "autocast": st.sampled_from(("none", "bf16", "fp16")),
    "adapter_dtype": st.sampled_from(OPTIONS["adapter_dtype"]),
    "quantize_experts": st.booleans(),
    "optimizer": st.sampled_from(OPTIONS["optimizer"]),
    "activation_checkpointing": st.sampled_from(OPTIONS["activation_checkpointing"]),
    "attention": st.sampled_from(OPTIONS["attention"]),
    "kernels": st.lists(st.sampled_from(OPTIONS["kernels"])),
    "loss": st.sampled_from(OPTIONS["loss"]),
    "compile": st.booleans(),
    "dataset": st.sampled_from(("math_14k", "commonsense_15k")),
    "num_samples": st.integers(1, 10**9),
    "seq_len": st.integers(1, 16_777_216),
    "packing": st.booleans(),
    "padding": st.sampled_from(OPTIONS["padding"]),
    "over_length": st.sampled_from(OPTIONS["over_length"]),
    "packing_strategy": st.sampled_from(OPTIONS["packing_strategy"]),
    "group_by_length": st.booleans(),
    "validation_fraction": st.floats(0, 0.9),
    "micro_batch_size": st.integers(1, 10**6),
    "epochs": st.floats(1e-3, 1e3),
    "max_steps": st.integers(1, 10**9),
    "gpu": st.sampled_from(("A40", "H100", "a100-80gb")),
    "num_gpus": st.sampled_from((1, 2, 4, 8, 16, 64)),
    "num_nodes": st.sampled_from((1, 2)),
    "data_parallel_shard": DEGREES,
    "data_parallel_replicate": DEGREES,
    "tensor_parallel": DEGREES,
    "pipeline_parallel": DEGREES,
    "context_parallel": DEGREES,
    "sharding": st.sampled_from(OPTIONS["sharding"]),
    "virtual_pipeline_stages": st.sampled_from((1, 1, 2)),
    "sequence_parallel": st.booleans(),
    "cpu_offload": st.sampled_from(OPTIONS["cpu_offload"]),
    "region": WORDS,
    "startup_s": st.floats(0, 1e6),
    "framework": WORDS,
    "transformers_version": st.sampled_from(("4.40", "4.56.2", "5.23", "5")),
}
FIELDS = st.fixed_dictionaries(
    {"model": st.sampled_from(MODELS), "method": st.sampled_from(OPTIONS["method"])}, optional=OPTIONAL_FIELDS
)


def valid(fields: dict[str, Any]) -> Run:
    """Return the run of `fields`, or leave the example if they contradict each other."""
    try:
        return Run(**fields)
    except FieldError:
        assume(False)
        raise


def read_text(text: str | bytes, *words: str) -> Run:
    """Return the run that a file of `text` describes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read(path, words)


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(FIELDS)
def test_any_run_reads_back_equal(fields: dict[str, Any]) -> None:
    run = valid(fields)
    again = read_text(run.to_yaml())
    assert again == run
    assert again.fields() == run.fields()
    assert again.to_yaml() == run.to_yaml()
    assert run.replace() == run


@settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much])
@given(FIELDS, st.integers(1, 10**5))
def test_an_override_changes_its_field_and_says_so(fields: dict[str, Any], seq_len: int) -> None:
    run = valid(fields)
    changed = read_text(run.to_yaml(), f"seq_len={seq_len}")
    assert changed.seq_len == seq_len
    assert changed.origins["seq_len"] == FROM_COMMAND_LINE
    assert changed == run.replace(seq_len=seq_len)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
def test_any_bytes_are_read_or_refused(content: bytes | str) -> None:
    refused_or_read(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)


@settings(max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(
            [*RUN_FIELDS, "model_name_or_path", "stage", "finegauge", "deepspeed", "quantization_bit"]
        ),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=5,
        ),
        max_size=6,
    )
)
def test_any_values_are_read_or_refused(keys: dict[str, Any]) -> None:
    import yaml

    refused_or_read(yaml.safe_dump({"model": "qwen3-8b", "method": "lora", **keys}).encode())
    refused_or_read(yaml.safe_dump({"model_name_or_path": "qwen3-8b", "stage": "sft", **keys}).encode())


@settings(max_examples=100)
@given(st.data())
def test_any_mutation_of_a_good_file_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray((Path(__file__).parents[2] / "examples" / "mixtral_qlora_math.yaml").read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 12))] = data.draw(st.binary(max_size=6))
        content = content or bytearray(b" ")
    refused_or_read(bytes(content))


def refused_or_read(content: bytes) -> None:
    """Read `content`; a refusal is one printable sentence."""
    sentence = "it was read"
    try:
        read_text(content)
    except FineGaugeError as error:
        sentence = str(error)
    assert sentence.isprintable()
    assert 5 < len(sentence) < 1000
