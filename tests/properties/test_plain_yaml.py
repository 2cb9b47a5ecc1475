"""Files of plain lines are read without PyYAML, and as PyYAML reads them."""

from hypothesis import given
from hypothesis import strategies as st

from finegauge.documents import _parsed_by_yaml, _plain_lines
from tests.house.sources import ROOT

PIECES = st.sampled_from([
    "a", "key", "b: 2", "- ", ": ", ":", "\n", "\n  ", "\n    ", "\nc:", "\n  d: e", "\nf: -1", " ", "#",
    "# c", " # c",
    '"', '"x y"', "1", "5e-5", "yes", "-", "-.inf", ".", "...", "---", "~", "null", "w1,w2", "{a: 1}", "[1]",
    "'", "'q'",
    "|", ">", "&a", "*a", "!!str", "<<: ", "=", ",", "x/y", "%", "@", "\t", "? ", "\\", "0x1F", "1_000", "é",
])  # fmt: skip
LINES = st.from_regex(
    r"( {0,2}([a-c]|k-y):( +[a-z0-9.,/=+_-]{0,4}| \"[a-z :]{0,4}\")?( #[a-z ]*)?\n){1,6}", fullmatch=True
)


@given(st.one_of(st.lists(PIECES, max_size=14).map("".join), LINES))
def test_what_is_read_without_pyyaml_is_what_pyyaml_reads(text: str) -> None:
    found = _plain_lines(text)
    assert found is None or repr(found) == repr(_parsed_by_yaml(text, "text"))


def test_the_examples_are_plain_and_read_alike() -> None:
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "examples").rglob("*.yaml"))]
    plain = [
        text for text in texts if (found := _plain_lines(text)) and found == _parsed_by_yaml(text, "text")
    ]
    assert len(plain) >= len(texts) // 2
    assert _plain_lines("a: 1\na: 2\n") is None is _plain_lines("a: [1]\n")
    assert _plain_lines("\n".join(f"k{number}: 1" for number in range(2000))) is None
