"""The text that training makes of a record, before it becomes tokens.

    auto      conversations and Alpaca records by the model's own chat template where it has one; without
              one, Alpaca's prompt, and conversations as plain. Pairs and texts as plain.
    model     everything but texts by the model's chat template
    chatml    everything but texts by <|im_start|>role ... <|im_end|>
    alpaca    Alpaca records, and pairs, by Alpaca's prompt; the rest as plain
    plain     parts and turns as they are, joined by line breaks; prompt and completion run together, as
              TRL has them
    FILE      a chat template in a file of its own, .jinja

What a template writes is tokenised without further special tokens, as transformers does it. What is
written without one gets those of `tokenizer.json` and ends with the end-of-text token where
`tokenizer_config.json` names one, as TRL's and Axolotl's texts do. A chat template is jinja2 of unknown
origin, so it runs in a sandbox (`template_sandbox`), in a process with limits (`token_lengths`).

Neglects: that LLaMA-Factory tokenises each turn for itself, which moves a token here and there.

Sources: Taori et al. 2023, Stanford Alpaca (its prompt); TRL, SFTTrainer; transformers, apply_chat_template.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from finegauge.data.record_formats import (
    Chat,
    Content,
    Counted,
    Instruction,
    Message,
    Pair,
    Plain,
    Unreadable,
)
from finegauge.data.tokenizer import INSTALL, TokenizerFiles
from finegauge.documents import MAX_BYTES, installed_version, read_bytes
from finegauge.errors import FieldError, FileFormatError, UnsupportedError, did_you_mean, shown

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
        except MemoryError:
            raise
        except Exception as error:  # whatever the template's own code does wrong
            reason = (str(error).splitlines() or [""])[0][:200].rstrip(".")
            raise Unreadable(f"the chat template refuses it: {reason or type(error).__name__}") from None
        return _unmarked(text) if self.marks_answers else (text, _spoken(text, messages))


@lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    """Return the compiled template. Raises: FileFormatError, UnsupportedError without jinja2."""
    installed = tuple(int(part) for part in installed_version("jinja2").split(".")[:3] if part.isdigit())
    if installed < SAFE_JINJA2:
        raise UnsupportedError(
            f"The chat template needs jinja2 3.1.6 or later, whose sandbox has no known hole: {INSTALL}. "
            f"Without it, use --template plain."
        )
    from jinja2.exceptions import TemplateSyntaxError

    from finegauge.data.template_sandbox import environment

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
        spoken = words(message.get("content")).strip()
        found = text.find(spoken, at) if spoken else -1
        if found < 0:
            continue
        at = found + len(spoken)
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


AUTO = "auto"
TEMPLATES = (AUTO, "model", "chatml", "alpaca", "plain")
FILE_SUFFIXES = (".jinja", ".jinja2", ".j2")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
)
_TASK = "Below is an instruction that describes a task"
_CONTEXT = ", paired with an input that provides further context"
_ANSWER = "Write a response that appropriately completes the request."


class Rendered(NamedTuple):
    """A text to tokenise, or its tokens where they are known."""

    text: str
    answers: Spans | None  # where in the text the answers stand; None: all of it is learnt
    is_template: bool  # so that the text has its special tokens already
    counted: Counted | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to learn from."""
        return not (self.counted.ids if self.counted else self.text.strip())


class Rendering(NamedTuple):
    """How the records of a data set become texts."""

    name: str  # as asked for
    by_chat: ChatTemplate | None  # of conversations, and of Alpaca records where `alpaca_by_chat`
    alpaca_by_chat: bool
    pairs_by_chat: bool
    pairs_by_alpaca: bool
    end_of_text: str

    def render(self, content: Content) -> Rendered:
        """Return the text of what a record says. Raises: Unreadable where a template refuses it."""
        if isinstance(content, Plain):
            return self._written(content.text, None)
        if isinstance(content, Counted):
            return Rendered("", None, is_template=True, counted=content)
        if isinstance(content, Chat):
            return self._chat(content.messages, content.tools)
        if isinstance(content, Pair):
            if not (self.pairs_by_chat or self.pairs_by_alpaca):
                return self._answered(content)
            content = Instruction(content.prompt, "", content.answer, "", ())
        return self._instruction(content)

    def _chat(self, messages: list[Message], tools: list[Any] | None) -> Rendered:
        if not any(words(turn.get("content")).strip() or turn.get("tool_calls") for turn in messages):
            return Rendered("", [], is_template=True)
        if self.by_chat is not None:
            return Rendered(*self.by_chat.render(messages, tools), is_template=True)
        parts, spans, at = [], [], 0
        for turn in messages:
            spoken = words(turn.get("content"))
            if turn.get("role") == "assistant":
                spans.append((at, at + len(spoken)))
            parts.append(spoken)
            at += len(spoken) + 1
        return self._written("\n".join(parts), spans)

    def _instruction(self, record: Instruction) -> Rendered:
        if not (record.instruction + record.context + record.output).strip():
            return Rendered("", [], is_template=True)
        if self.alpaca_by_chat:
            return self._chat(record.messages(), None)
        if self.name == "plain":
            question = [part for part in (record.instruction, record.context) if part]
            return self._answered(Pair("\n".join([*question, ""]), record.output))
        head = record.system or f"{_TASK}{_CONTEXT if record.context else ''}. {_ANSWER}"
        given = f"\n\n### Input:\n{record.context}" if record.context else ""
        past = "".join(f"### Instruction:\n{a}\n\n### Response:\n{b}\n\n" for a, b in record.history)
        prompt = f"{head}\n\n{past}### Instruction:\n{record.instruction}{given}\n\n### Response:\n"
        return self._answered(Pair(prompt, record.output))

    def _answered(self, pair: Pair) -> Rendered:
        question = pair.prompt + pair.between
        text = question + pair.answer
        if not text.strip():
            return Rendered("", [], is_template=False)
        spans = [(len(question), len(text))] if pair.answer.strip() else []
        return self._written(text, spans)

    def _written(self, text: str, answers: Spans | None) -> Rendered:
        """Return a text with its end; the end belongs to the answer that it follows."""
        if not text.strip() or not self.end_of_text or text.endswith(self.end_of_text):
            return Rendered(text, answers, is_template=False)
        ended = text + self.end_of_text
        if answers and answers[-1][1] == len(text):
            answers = [*answers[:-1], (answers[-1][0], len(ended))]
        return Rendered(ended, answers, is_template=False)


def rendering(template: str | None, files: TokenizerFiles, knows: Callable[[str], bool]) -> Rendering:
    """Return how records are to be rendered.

    Args:
        template: A name of `TEMPLATES` or a file; None is auto.
        files: Of the tokenizer.
        knows: Whether the tokenizer has a text as one token.
    Raises: FieldError for a name that is none, FileFormatError for a template that is no jinja2.
    """
    name = template or AUTO
    source = template_source(name, files)
    end = files.special_tokens.get("eos_token", "")
    return Rendering(
        name=name,
        by_chat=chat_template(source, files.special_tokens) if source is not None else None,
        alpaca_by_chat=source is not None,
        pairs_by_chat=source is not None and name != AUTO,
        pairs_by_alpaca=name == "alpaca",
        end_of_text=end if end and knows(end) else "",
    )


def template_source(name: str, files: TokenizerFiles) -> str | None:
    """Return the chat template that a name stands for, None where it stands for none."""
    if name in ("alpaca", "plain"):
        return None
    if name == "chatml":
        return CHATML
    if name == AUTO:
        return files.chat_template
    if name == "model":
        if files.chat_template is None:
            raise FieldError(
                f"template=model is asked for, but beside {files.file} there is no chat template; use "
                f"chatml, alpaca, plain or a file."
            )
        return files.chat_template
    if name.endswith(FILE_SUFFIXES):
        return read_bytes(name, MAX_BYTES).decode("utf-8", errors="replace")
    raise FieldError(
        f"No template named {shown(name)}.{did_you_mean(name, TEMPLATES)} There are {', '.join(TEMPLATES)}, "
        f"and files that end in .jinja."
    )


def in_words(made: Rendering, formats: tuple[str, ...]) -> str:
    """Return in words how records of these formats were rendered; "" where nothing was chosen."""
    chats = {"messages", "sharegpt"} & set(formats)
    if made.name != AUTO:
        return f"rendered by the template '{made.name}'"
    if made.by_chat is not None and (chats or "alpaca" in formats):
        return "rendered by the model's chat template"
    if "alpaca" in formats:
        return "rendered by Alpaca's prompt: the tokenizer brings no chat template"
    if chats:
        return "turns joined by line breaks: the tokenizer brings no chat template"
    return ""


def check_format(name: str | None, known: tuple[str, ...]) -> str | None:
    """Return a format's name, None for auto. Raises: FieldError."""
    if name in (None, AUTO):
        return None
    if name not in known:
        raise FieldError(
            f"No format named {shown(name)}.{did_you_mean(str(name), known)} There are {', '.join(known)}."
        )
    return name
