"""A conversation as a model's own chat template writes it.

The template is jinja2 of unknown origin, so it runs in jinja2's immutable sandbox, with what
transformers' `apply_chat_template` gives its templates and no more: `raise_exception`, `strftime_now`,
`tojson` that leaves HTML alone, `break` and `continue`, and the block `{% generation %}` around what the
assistant says. Lengths therefore equal transformers' own.

Neglects: how long a template may run; it can loop, though not for ever.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from finegauge.errors import FileFormatError, UnsupportedError
from finegauge.workload.dataset_files.formats import Message, Unreadable
from finegauge.workload.dataset_files.tokenizer import INSTALL

Spans = list[tuple[int, int]]
SAFE_JINJA2 = (3, 1, 6)

# Names under which a message's reasoning stands; templates read the first.
REASONING = ("reasoning_content", "thinking", "reasoning")
# Characters of Unicode's private use, around what stands within {% generation %}.
OPENS, CLOSES = "\ue0f0", "\ue0f1"


class ChatTemplate(NamedTuple):
    """A compiled template, and the special tokens that it is given."""

    compiled: Any
    special_tokens: Mapping[str, str]
    marks_answers: bool

    def render(self, messages: Sequence[Message], tools: list[Any] | None = None) -> tuple[str, Spans]:
        """Return the text of a conversation, and where in it the assistant speaks.

        Raises: Unreadable where the template refuses the conversation.
        """
        turns = [_with_reasoning(message) for message in messages]
        try:
            text = self.compiled.render(
                messages=turns,
                tools=tools,
                documents=None,
                add_generation_prompt=False,
                **self.special_tokens,
            )
        except Exception as error:  # whatever the template's own code does wrong
            reason = (str(error).splitlines() or [""])[0][:200].rstrip(".")
            raise Unreadable(f"the chat template refuses it: {reason or type(error).__name__}") from None
        return _unmarked(text) if self.marks_answers else (text, _spoken(text, messages))


@lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    """Return the compiled template. Raises: FileFormatError, UnsupportedError without jinja2."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = tuple(int(part) for part in version("jinja2").split(".")[:3] if part.isdigit())
    except PackageNotFoundError:
        installed = ()
    if installed < SAFE_JINJA2:
        raise UnsupportedError(
            f"The chat template needs jinja2 3.1.6 or later, whose sandbox has no known hole: {INSTALL}. "
            f"Without it, use --template plain."
        )
    from jinja2.exceptions import TemplateSyntaxError

    from finegauge.workload.dataset_files.sandbox import environment

    try:
        return environment(OPENS, CLOSES).from_string(source)
    except (TemplateSyntaxError, RecursionError) as error:
        raise FileFormatError(
            f"The chat template is no jinja2: {str(error).splitlines()[0].rstrip('.')}."
        ) from None


def chat_template(source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Return the template whose text is `source`."""
    compiled = _compiled(source)
    return ChatTemplate(compiled, special_tokens, "endgeneration" in source)


def _with_reasoning(message: Message) -> Message:
    """Return a message whose reasoning stands under the name that templates read."""
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _unmarked(text: str) -> tuple[str, Spans]:
    """Return the text without its marks, and the spans between them."""
    parts, spans, at = [], [], 0
    for number, piece in enumerate(text.replace(CLOSES, OPENS).split(OPENS)):
        parts.append(piece)
        if number % 2:
            spans.append((at, at + len(piece)))
        at += len(piece)
    return "".join(parts), spans


def _spoken(text: str, messages: Sequence[Message]) -> Spans:
    """Return where the assistant's words stand in a text that does not mark them.

    Turns are looked for one after the other, so that an answer is not found in the question.
    """
    spans, at = [], 0
    for message in messages:
        said = words(message.get("content")).strip()
        found = text.find(said, at) if said else -1
        if found < 0:
            continue
        at = found + len(said)
        if message.get("role") == "assistant":
            spans.append((found, at))
    return spans


def words(content: Any) -> str:
    """Return the text of a message, whose content may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(part for part in parts if isinstance(part, str))
