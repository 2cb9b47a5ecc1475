"""No file of any framework brings a reader down: broken, misused or hostile, it is a run or one sentence."""

import copy
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finegauge.errors import FineGaugeError
from finegauge.formats.reading import companion_fields, describe
from finegauge.run.run import Run

STEMS = [
    "{model_name_or_path: Qwen/Qwen3-8B, stage: sft, dataset: math_14k, deepspeed: z3.json, packing: no}",
    "{model_name_or_path: Qwen/Qwen3-8B, use_peft: yes, lora_r: 8, load_in_4bit: yes, fsdp_config: {a: 1}}",
    "{peft_type: LORA, base_model_name_or_path: Qwen/Qwen3-8B, r: 8, target_modules: [q_proj]}",
    "{base_model: Qwen/Qwen3-8B, adapter: qlora, load_in_4bit: yes, datasets: [{path: a}],"
    " plugins: [x.Liger], fsdp_config: {offload_params: no}, val_set_size: 0.1}",
    "{model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 8,"
    " lora_attn_modules: [q_proj]}, tokenizer: {max_seq_len: 9}, dataset: {packed: no},"
    " batch_size: 2, max_steps_per_epoch: 3, epochs: 2}",
    "{model: {pretrained_model_name_or_path: Qwen/Qwen3-8B}, step_scheduler: {global_batch_size: 8},"
    " peft: {dim: 8, target_modules: '*_proj'}, distributed: {strategy: fsdp2, tp_size: 2}}",
    "{trainer: {devices: 8, precision: bf16}, model: {restore_from_path: llama2-13b.nemo, global_batch_size:"
    " 8, peft: {peft_scheme: lora, lora_tuning: {adapter_dim: 8}}, data: {train_ds: {file_names: [a]}}}}",
    "{model: Qwen/Qwen3-8B, tuner_type: lora, dataset: ['a#5'], max_length: 9, deepspeed: zero2,"
    " quant_bits: 4}",
    "{model: Qwen/Qwen3-8B, training: {max_seq_length: 9, load_in_4bit: yes}, lora: {lora_r: 8}, data: {}}",
    "{model: Qwen/Qwen3-8B, train_dataset: a.yaml, peft_config: {name: lora, r: 4}, dist_config: {name:"
    " fsdp2, cp_size: 2}, quant_config: {name: bnb, quantization_bit: 4}, global_batch_size: 4}",
    "{model: {name: qwen3, flavor: 8B}, training: {seq_len: 9, global_batch_size: 8}, parallelism: {}}",
    "{distributed_type: FSDP, num_processes: 8, fsdp_config: {a: 1}, dynamo_config: {},"
    " parallelism_config: {}}",
    "{zero_optimization: {stage: 3, offload_param: {device: cpu}}, bf16: {enabled: auto}}",
]  # fmt: skip
HOSTILE: list[Any] = [
    None, [], {}, "", -1, 0, 10**30, 1e308, float("nan"), "2e-4", "no", "x" * 300, "${oc.env:HOME}", [[]],
    "../../../../../../etc/passwd", "unsloth", True, [1, {"a": None}], {"a": {"b": [1]}}, "auto",
]  # fmt: skip
WORDS: list[tuple[str, ...]] = [(), ("num_gpus=8",), ("method=qlora",), ("method=full",), ("model=qwen3-8b",)]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value inside a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(p for key, one in inside for p in paths_of(one, (*path, key)))]


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return the document with another value at `path`."""
    changed = copy.deepcopy(document)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def is_answered(text: str, name: str, words: tuple[str, ...] = ()) -> bool:
    """Return whether the text is a run or one sentence; anything else raises."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            companion_fields(str(path))
            return isinstance(describe(path, words), Run)
        except FineGaugeError as error:
            return bool(str(error)) and "\n" not in str(error)


@settings(max_examples=150, deadline=1000, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(STEMS), st.data())
def test_hostile_values_in_every_place(stem: str, data: st.DataObject) -> None:
    document = yaml.safe_load(stem)
    for _ in range(data.draw(st.integers(1, 3))):
        places = paths_of(document)
        if places:
            document = with_value(
                document, data.draw(st.sampled_from(places)), data.draw(st.sampled_from(HOSTILE))
            )
    assert is_answered(yaml.safe_dump(document), "run.yaml", data.draw(st.sampled_from(WORDS)))


@settings(max_examples=60, deadline=1000)
@given(
    st.sampled_from(("train.py", "train.sh", "job.toml", "run.yaml", "args.json", "job.slurm", "nb.ipynb")),
    st.text(st.characters(codec="utf-8"), max_size=300),
    st.sampled_from(
        (
            "",
            "SFTConfig(max_length=9, **{'a': 1})\n",
            "swift sft --model ",
            "[model]\nflavor='8B'\n",
            "python -m verl.trainer.main_ppo a.b=",
            "A=(1 ",
            "cat <<E\n",
            "trl sft ${A:-",
            '{"cells": [',
        )
    ),
)
def test_any_text_of_any_kind(name: str, text: str, start: str) -> None:
    assert is_answered(start + text, name)


def test_deep_and_long_scripts_are_refused_at_once() -> None:
    for text in ("(" * 5000, "a" + ".b" * 20_000 + "()", "x = " + "1+" * 20_000 + "1", "[" * 150 + "]" * 150):
        assert is_answered(f"SFTConfig(x=1)\n{text}\n", "train.py")


LAUNCHES = st.sampled_from(
    (
        *(
            "A=$A$A",
            "A=(${A[@]} ${A[@]})",
            "'",
            '"',
            "${A:-",
            "}",
            "$(",
            ")",
            "$((9**9))",
            "<<E",
            "E",
            "\\\n",
            "|",
        ),
        *(
            "if",
            "fi",
            "case",
            "esac",
            "for A in 1",
            "do",
            "eval",
            "bash -c",
            "srun",
            "torchrun",
            "accelerate launch",
        ),
        *(
            "--config",
            "x.yaml",
            "train.py",
            "pretrain_gpt.py",
            "--num-layers",
            "99999999",
            "--bf16",
            "a.b.c=[",
            "==",
        ),
        *(
            "trl",
            "sft",
            "grpo",
            "swift",
            "llamafactory-cli",
            "train",
            "axolotl",
            "tune",
            "run",
            "nemo",
            "llm",
        ),
        *(
            "litgpt",
            "finetune",
            "autotrain",
            "python",
            "-m",
            "openrlhf.cli.train_ppo_ray",
            "deepspeed",
            "main.py",
        ),
        *(
            "--model_name_or_path",
            "--pretrain",
            "Qwen/Qwen3-8B",
            "--zero_stage",
            "3",
            "-1",
            "nan",
            "\n",
            ";",
            "&&",
        ),
    )
)


@settings(max_examples=200, deadline=2000)
@given(st.lists(LAUNCHES, max_size=30).map(" ".join))
def test_any_launch_line(text: str) -> None:
    assert is_answered(text, "train.sh")
    with suppress(FineGaugeError):
        assert isinstance(describe(f" -- {text}"), Run)


def test_names_that_stand_for_names_end() -> None:
    doubled = "".join(f"a{i} = a{i + 1} + a{i + 1}\n" for i in range(60))
    nested = "".join(f"a{i} = [a{i + 1}, a{i + 1}]\n" for i in range(60))
    for names in (doubled, nested, "a0 = a1\na1 = a0\n"):
        assert is_answered(
            f"{names}SFTTrainer(model='Qwen/Qwen3-8B', args=SFTConfig(max_steps=a0))\n", "train.py"
        )
    for text in ("A=x\n" + "A=$A$A\n" * 400, "A=(x)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 400, "a\\b" * 90_000,
                 "${a:-" * 2000, "cat <<E\nx\nE\n" * 900, "$()" * 90_000):  # fmt: skip
        assert is_answered(f"{text}\ntrl sft --model_name_or_path $A\n", "train.sh")
