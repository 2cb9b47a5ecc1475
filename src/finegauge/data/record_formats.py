"""What one record of a data set says, whatever names its maker gave the parts.

    tokens              input_ids, with or without labels: counted already
    messages            messages of role and content (OpenAI), or a bare list of them
    sharegpt            conversations of from and value
    alpaca              instruction, input, output; system and history where given
    preference          chosen beside rejected, with or without a prompt: the chosen answer is read
    prompt-completion   prompt and completion, or another pair of a question and its answer
    text                text, or a bare string

A record is read as the first of these that it can be: a rendered `text` beside the parts that it was made
of is the poorer witness. The names are those of the data sets on the Hub and of TRL, LLaMA-Factory
and Axolotl.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from finegauge.errors import shown

Record = Mapping[str, Any]
Message = dict[str, Any]

PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("query", "response"),
    ("question", "answer"),
    ("problem", "solution"),
    ("input", "output"),
)
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool": "tool",
    "system": "system",
}
IGNORED_LABEL = -100  # of a token that the loss leaves out, in transformers and its relatives


class Unreadable(ValueError):  # noqa: N818 - a record that is left out, not an error of the whole
    """Why a record says nothing."""


class Plain(NamedTuple):
    """A text, learnt whole."""

    text: str


class Pair(NamedTuple):
    """A question and its answer, and what stands between them in a text."""

    prompt: str
    answer: str
    between: str = ""


class Instruction(NamedTuple):
    """Alpaca's parts."""

    instruction: str
    context: str
    output: str
    system: str
    history: tuple[tuple[str, str], ...]

    def messages(self) -> list[Message]:
        """Return the parts as a conversation, instruction and input joined by a line break."""
        question = f"{self.instruction}\n{self.context}" if self.context else self.instruction
        turns = [turn for pair in (*self.history, (question, self.output)) for turn in _exchange(*pair)]
        return [{"role": "system", "content": self.system}, *turns] if self.system else turns


class Chat(NamedTuple):
    """A conversation."""

    messages: list[Message]
    tools: list[Any] | None = None


class Counted(NamedTuple):
    """Tokens that are known already."""

    ids: list[int]
    num_loss: int


Content = Plain | Pair | Instruction | Chat | Counted


def _exchange(question: str, answer: str) -> tuple[Message, Message]:
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}


def _tokens(record: Record) -> Content | None:
    ids, labels = record.get("input_ids"), record.get("labels")
    if not isinstance(ids, list):
        return None
    if not all(isinstance(one, int) for one in ids):
        raise Unreadable("input_ids holds more than token numbers")
    if not isinstance(labels, list):
        return Counted(ids, len(ids))
    return Counted(ids, sum(label != IGNORED_LABEL for label in labels[: len(ids)]))


def _messages(record: Record) -> Content | None:
    turns = record.get("messages")
    if not isinstance(turns, list):
        return None
    return Chat([_message(turn, "role", "content") for turn in turns], _tools(record))


def _sharegpt(record: Record) -> Content | None:
    turns = record.get("conversations", record.get("conversation"))
    if not isinstance(turns, list):
        return None
    messages = [_message(turn, "from", "value") for turn in turns]
    if isinstance(record.get("system"), str) and record["system"]:
        messages.insert(0, {"role": "system", "content": record["system"]})
    return Chat(messages, _tools(record))


def _message(turn: Any, role: str, content: str) -> Message:
    """Return one turn as role and content; either way of naming them is understood."""
    if not isinstance(turn, Mapping):
        raise Unreadable("a turn of the conversation is no mapping")
    if "content" not in turn and "value" not in turn and not turn.get("tool_calls"):
        raise Unreadable("a turn of the conversation has no text under 'content' or 'value'")
    if role not in turn:
        role, content = ("from", "value") if role == "role" else ("role", "content")
    if content == "content" and isinstance(turn.get("role"), str):
        return {key: value for key, value in turn.items() if value is not None}  # as transformers does
    who, what = turn.get(role), turn.get(content)
    if not isinstance(who, str) or not isinstance(what, str):
        raise Unreadable("a turn of the conversation does not say who speaks, or what")
    return {"role": ROLES.get(who, who), "content": what}


def _tools(record: Record) -> list[Any] | None:
    """Return the tools of a conversation: a list, or JSON that holds one."""
    tools = record.get("tools")
    if isinstance(tools, str) and tools.strip():
        import json

        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise Unreadable("tools is no JSON") from None
    return tools if isinstance(tools, list) and tools else None


def _alpaca(record: Record) -> Content | None:
    instruction, output = record.get("instruction"), record.get("output")
    if not isinstance(instruction, str) or not isinstance(output, str):
        return None
    history = record.get("history") or []
    if not isinstance(history, list) or not all(map(_is_exchange, history)):
        raise Unreadable("history is no list of pairs of a question and its answer")
    return Instruction(
        instruction,
        _optional(record, "input"),
        output,
        _optional(record, "system"),
        tuple((question, answer) for question, answer in history),
    )


def _optional(record: Record, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def _preference(record: Record) -> Content | None:
    if "chosen" not in record or "rejected" not in record:
        return None
    return _prompt_and_answer(record.get("prompt") or "", record["chosen"], record)


def _prompt_completion(record: Record) -> Content | None:
    for question, answer in PAIRS:
        if question in record and answer in record:
            found = _prompt_and_answer(record[question], record[answer], record)
            if isinstance(found, Pair) and answer != "completion":
                return found._replace(between="\n")
            if found is not None:
                return found
    return None


def _prompt_and_answer(question: Any, answer: Any, record: Record) -> Content | None:
    """Return a question and its answer, each a text or a list of messages."""
    if isinstance(question, str) and isinstance(answer, str):
        return Pair(question, answer)
    if not isinstance(answer, list):
        return None
    before = (
        [{"role": "user", "content": question}] if isinstance(question, str) and question else question or []
    )
    if not isinstance(before, list):
        return None
    return Chat([_message(turn, "role", "content") for turn in (*before, *answer)], _tools(record))


def _text(record: Record) -> Content | None:
    return Plain(record["text"]) if isinstance(record.get("text"), str) else None


def _is_exchange(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


FORMATS: dict[str, Callable[[Record], Content | None]] = {
    "tokens": _tokens,
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "preference": _preference,
    "prompt-completion": _prompt_completion,
    "text": _text,
}
USED_KEYS = frozenset(
    {
        *("input_ids", "labels", "attention_mask", "messages", "conversations", "conversation", "tools"),
        *("instruction", "input", "output", "system", "history", "chosen", "rejected", "text"),
        *(name for pair in PAIRS for name in pair),
    }
)


def read_record(record: Any, wanted: str | None) -> tuple[str, Content]:
    """Return the format of a record, and what it says.

    Args:
        record: As the file holds it.
        wanted: The one format to accept; any where None.
    Raises: Unreadable.
    """
    if isinstance(record, str):
        record = {"text": record}
    elif isinstance(record, list):
        record = {"messages": record}
    if not isinstance(record, Mapping):
        raise Unreadable(f"{shown(record)} is neither a text nor a mapping")
    if wanted is not None:
        content = FORMATS[wanted](record)
        if content is None:
            raise Unreadable(f"{_keys(record)} is no record of format {wanted}")
        return wanted, content
    for name, read in FORMATS.items():
        content = read(record)
        if content is not None:
            return name, content
    raise Unreadable(
        f"none of the keys {_keys(record)} holds its text; use 'text', 'messages', or a pair such as "
        f"'prompt' and 'completion'"
    )


def _keys(record: Record) -> str:
    return ", ".join(shown(str(key), 30)[1:-1] for key in list(record)[:8]) or "(none)"
