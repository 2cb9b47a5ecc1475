"""Texts as training makes them: equal to transformers' chat templates, to TRL's texts, to Alpaca's prompt."""

import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from finegauge.data import token_lengths as counting
from finegauge.data.record_formats import Unreadable
from finegauge.data.rendering import chat_template
from finegauge.data.token_lengths import token_lengths
from finegauge.errors import FieldError, FileFormatError
from tests.unit.data import made
from tests.unit.data.made import BARE, CHATML, lines, talk, tokenizer, words

TALKS = [
    talk("who are you?", "an assistant."),
    talk("fox?", "yes: the fox. yes!", "dog <b>&amp;</b>?", "  the lazy dog\n", system="answers in short"),
    talk("a question without an answer"),
    talk("über", "quer über den Deich", "and?", "ü"),
    talk("yes", "yes"),
]


def theirs(folder: str, template: str) -> Any:
    """Return transformers' own tokenizer of a folder."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=f"{folder}/tokenizer.json", bos_token="<s>", eos_token="</s>", chat_template=template
    )


@pytest.mark.parametrize("template", [CHATML, BARE], ids=["chatml", "bare"])
def test_lengths_equal_those_of_apply_chat_template(template: str, tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model", template)
    ours = token_lengths(lines(tmp_path / "a.jsonl", [{"messages": one} for one in TALKS]), folder)
    real = theirs(folder, template)
    expected = [len(real.apply_chat_template(one, tokenize=True)["input_ids"]) for one in TALKS]
    assert list(ours.tokens) == expected
    assert ours.findings.notes == ("rendered by the model's chat template",)


def test_answers_equal_those_that_transformers_marks(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model", CHATML)
    ours = token_lengths(lines(tmp_path / "a.jsonl", [{"messages": one} for one in TALKS]), folder)
    real = theirs(folder, CHATML)
    for tokens, one in zip(ours.loss_tokens, TALKS, strict=True):
        marked = real.apply_chat_template(
            one, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert tokens == sum(marked["assistant_masks"])
    assert ours.findings.num_without_answer == 1


def test_answers_are_found_where_the_template_does_not_mark_them(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model", BARE)
    ours = token_lengths(lines(tmp_path / "a.jsonl", [{"messages": one} for one in TALKS]), folder)
    real = theirs(folder, BARE)
    for tokens, one in zip(ours.loss_tokens, TALKS, strict=True):
        said = [turn["content"].strip() for turn in one if turn["role"] == "assistant"]
        alone = sum(len(real(f": {text}", add_special_tokens=False)["input_ids"]) - 1 for text in said)
        assert abs(tokens - alone) <= len(said)  # a token may cross the border


def test_tools_reach_the_template(tmp_path: Path) -> None:
    folder, tools = tokenizer(tmp_path / "model", BARE), [{"type": "function", "function": {"name": "fox<>"}}]
    ours = token_lengths(lines(tmp_path / "a.jsonl", [{"messages": TALKS[0], "tools": tools}]), folder)
    real = theirs(folder, BARE).apply_chat_template(TALKS[0], tools=tools, tokenize=True)
    assert list(ours.tokens) == [len(real["input_ids"])]


def test_a_conversation_that_the_template_refuses_costs_itself(tmp_path: Path) -> None:
    talks = [{"messages": [{"role": "tool", "content": "x"}]}, {"messages": TALKS[0]}]
    ours = token_lengths(lines(tmp_path / "a.jsonl", talks), tokenizer(tmp_path / "model", BARE))
    assert list(ours.rows) == [2]
    assert ours.findings.unreadable == ((1, "the chat template refuses it: Only user and assistant"),)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include 'tokenizer.json' %}",
        "{{ dict.__class__.__base__ }}",
    ],
)
def test_nothing_leaves_the_sandbox(source: str) -> None:
    template = chat_template(source, {})
    try:
        text, _ = template.render(talk("a", "b"))
    except Unreadable:
        return
    assert text == ""  # undefined, and so nothing


def test_a_template_that_is_no_jinja(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model", "{% for %}")
    path = lines(tmp_path / "a.jsonl", [{"messages": TALKS[0]}])
    with pytest.raises(FileFormatError, match="The chat template is no jinja2"):
        token_lengths(path, folder)


def test_where_the_template_stands(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"messages": TALKS[0]}])
    settled = list(token_lengths(path, tokenizer(tmp_path / "one", CHATML)).tokens)
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": CHATML}]
    assert list(token_lengths(path, tokenizer(tmp_path / "two", chat_template=named)).tokens) == settled
    own = Path(tokenizer(tmp_path / "three", "{{ 'not this' }}"))
    (own / "chat_template.jinja").write_text(CHATML, "utf-8")
    assert list(token_lengths(path, str(own)).tokens) == settled
    (tmp_path / "mine.jinja").write_text(CHATML, "utf-8")
    mine = token_lengths(path, tokenizer(tmp_path / "four"), template=str(tmp_path / "mine.jinja"))
    assert list(mine.tokens) == settled
    named_so = token_lengths(path, tokenizer(tmp_path / "five"), template="chatml")
    assert list(named_so.tokens) == settled


def test_texts_begin_and_end_as_in_trl(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model")
    records = [
        {"text": "the fox"},
        {"text": "the fox</s>"},
        {"prompt": "the fox jumps", "completion": " over"},
    ]
    ours = token_lengths(lines(tmp_path / "a.jsonl", records), folder)
    real = theirs(folder, CHATML)
    texts = ["the fox</s>", "the fox</s>", "the fox jumps over</s>"]
    assert list(ours.tokens) == [len(real(text)["input_ids"]) for text in texts]
    asked = len(real("the fox jumps")["input_ids"])
    assert ours.loss_tokens[2] == ours.tokens[2] - asked
    assert list(ours.loss_tokens[:2]) == list(ours.tokens[:2])


def test_alpaca_records(tmp_path: Path) -> None:
    record = {"instruction": "jumps?", "input": "the fox", "output": "over"}
    path = lines(tmp_path / "a.jsonl", [record])
    bare = tokenizer(tmp_path / "bare")
    real = theirs(bare, CHATML)
    prompt = (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n### Instruction:\njumps?\n\n"
        "### Input:\nthe fox\n\n### Response:\n"
    )
    ours = token_lengths(path, bare)
    assert ours.tokens[0] == len(real(f"{prompt}over</s>")["input_ids"])
    assert ours.loss_tokens[0] == ours.tokens[0] - len(real(prompt)["input_ids"])
    assert ours.findings.notes == ("rendered by Alpaca's prompt: the tokenizer brings no chat template",)
    chat = token_lengths(path, tokenizer(tmp_path / "chat", CHATML))
    turns = talk("jumps?\nthe fox", "over")
    assert chat.tokens[0] == len(real.apply_chat_template(turns, tokenize=True)["input_ids"])


@pytest.mark.parametrize(
    ("record", "tokens", "loss_tokens"),
    [
        ("alpha beta", 2, 2),
        ({"instruction": "alpha", "input": "", "output": "beta gamma"}, 3, 2),
        ({"instruction": "alpha", "input": "beta", "output": "gamma"}, 3, 1),
        ({"prompt": "alpha ", "completion": "beta"}, 2, 1),
        ({"question": "alpha alpha", "answer": "beta"}, 3, 1),
        ({"messages": talk("alpha", "beta")}, 2, 1),
        ({"messages": talk("alpha", " beta ", "beta", "gamma")}, 4, 2),
        ({"conversations": [{"from": "human", "value": "alpha"}]}, 1, 0),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "alpha beta"}]}]}, 2, 0),
        ({"input_ids": [7, 8, 9], "labels": [-100, -100, 9]}, 3, 1),
    ],
)
def test_plain(record: Any, tokens: int, loss_tokens: int, tmp_path: Path) -> None:
    ours = token_lengths(lines(tmp_path / "a.jsonl", [record]), words(tmp_path / "words"), template="plain")
    assert (list(ours.tokens), list(ours.loss_tokens)) == ([tokens], [loss_tokens])


def test_names_that_are_none(tmp_path: Path) -> None:
    path, folder = lines(tmp_path / "a.jsonl", ["alpha"]), words(tmp_path / "words")
    with pytest.raises(FieldError, match=r"No template named 'chatlm'. Did you mean 'chatml'\?"):
        token_lengths(path, folder, template="chatlm")
    with pytest.raises(FieldError, match=r"beside .*tokenizer\.json there is no chat template"):
        token_lengths(path, folder, template="model")
    with pytest.raises(FieldError, match=r"No format named 'alpacca'. Did you mean 'alpaca'\?"):
        token_lengths(path, folder, format="alpacca")


def test_reasoning_stands_under_the_name_that_templates_read() -> None:
    template = chat_template("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}", {})
    assert template.render([{"role": "assistant", "reasoning": "hm", "content": ""}])[0] == "hm|hm"


def test_made_tokenizers_are_those_of_the_tests(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model")
    assert theirs(folder, CHATML)(made.CORPUS[0])["input_ids"][0] == 0


RICH = """{{- bos_token }}
{%- macro part(content, trimmed=true) %}
    {%- if content is string %}{{ content | trim if trimmed else content }}
    {%- elif content is iterable %}{% for one in content if one.type == 'text' %}{{ one.text }}{% endfor %}{% endif %}
{%- endmacro %}
{%- set ns = namespace(last='', turns=dict(user=0)) %}
{%- if messages[0]['role'] == 'system' %}{{- '[SYS] ' ~ part(messages[0].content) ~ '\\n' }}
{%- set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{%- if tools is defined and tools %}{{- tools | tojson(indent=2) }}{% endif %}
{% for message in rest %}
    {% if message.content is none %}{% continue %}{% endif %}
    {% set ns.last = message['role'] %}
<|im_start|>{{ message.role }}
    {% if message.role == 'assistant' %}
    {%- generation %}
    {{- part(message.content, false) }}<|im_end|>
    {%- endgeneration %}
    {% else %}
{{ part(message.content) }}{% for key, value in message.items() if key not in ('role', 'content') %} {{ key }}={{ value | tojson }}{% endfor %}<|im_end|>
    {% endif %}
    {% if loop.index0 > 5 %}{% break %}{% endif %}
{% endfor %}
{% if ns.last == 'user' and add_generation_prompt %}<|im_start|>assistant{% endif %}
{{ strftime_now('%Y') }} {{ eos_token if ns.last == 'assistant' else unk_token }}"""  # noqa: E501


def test_a_template_of_many_constructs_equals_transformers(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model", RICH)
    parts: Any = [{"type": "text", "text": "the fox "}, {"type": "image"}, {"type": "text", "text": "<b>"}]
    talks: list[Any] = [
        *TALKS,
        [{"role": "user", "content": parts, "name": "ü"}, {"role": "assistant", "content": " yes\n\n"}],
        [{"role": "user", "content": None}, *talk("fox", "dog")],
        talk(*["fox jumps", "over"] * 6),
    ]
    ours = token_lengths(lines(tmp_path / "a.jsonl", [{"messages": one} for one in talks]), folder)
    real = theirs(folder, RICH)
    for place, one in enumerate(talks):
        marked = real.apply_chat_template(
            one, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ours.tokens[place] == len(marked["input_ids"])
        assert ours.loss_tokens[place] == sum(marked["assistant_masks"])


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a %}{% endfor %}{% endfor %}"
GROWING = (
    "{% set all = namespace(s='ab') %}{% for a in range(99) %}{% set all.s = all.s + all.s %}{% endfor %}"
)


def test_a_template_that_does_not_end_is_ended_in_any_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "WITHIN_S", 1.0)
    data = lines(tmp_path / "a.jsonl", [{"messages": TALKS[0]}])
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(token_lengths, data, tokenizer(tmp_path / "model", ENDLESS))
        with pytest.raises(
            FileFormatError, match="took more than 1 s over a few records, and was ended; the chat templ"
        ):
            ended.result()
    assert not active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="the system bounds no memory of this kind")
@pytest.mark.parametrize("template", [GROWING, "{{ 'a' * 10**12 }}"], ids=["growing", "huge"])
def test_a_template_that_takes_too_much_memory_is_ended(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST_MEMORY_BYTES", 2**29)
    data = lines(tmp_path / "a.jsonl", [{"messages": TALKS[0]}])
    with pytest.raises(FileFormatError, match=r"took more than 0\.5 GiB, and was ended; the chat template"):
        token_lengths(data, tokenizer(tmp_path / "model", template))
    assert not active_children()
