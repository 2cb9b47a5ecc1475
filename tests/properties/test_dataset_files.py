"""Whatever a file holds, every row is a sample, empty or unreadable; no error is raised but our own."""

import json
import tempfile
from collections.abc import Iterator
from multiprocessing import current_process
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.data.record_formats import FORMATS, USED_KEYS
from finegauge.data.token_lengths import token_ids, token_lengths
from finegauge.errors import FineGaugeError
from tests.unit.data.made import BARE, tokenizer

KEYS = st.sampled_from([*sorted(USED_KEYS), "role", "content", "from", "value", "tool_calls"])
ROLES = st.sampled_from(["user", "assistant", "system", "human", "gpt", "tool"])
TEXTS = st.text(max_size=12) | ROLES
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
TURNS = st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), max_size=3)
RECORDS = st.dictionaries(KEYS, TEXTS | TURNS | VALUES, max_size=5) | VALUES
LINES = st.lists(RECORDS.map(json.dumps).map(str.encode) | st.binary(max_size=20), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def here() -> Iterator[None]:
    """Count in this process, as one that has limits does: it is done a hundred times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(current_process())["_config"], "daemon", True)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tokenizer(tmp_path_factory.mktemp("model"), BARE)


@given(LINES, st.sampled_from([".jsonl", ".json", ".csv", ".txt"]), st.sampled_from([None, *FORMATS]))
@settings(max_examples=60)
def test_any_file_is_counted_or_refused(
    model: str, lines: list[bytes], suffix: str, name: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"any{suffix}"
        path.write_bytes(b"\n".join(lines))
        try:
            found = token_lengths(str(path), model, format=name)
        except FineGaugeError:
            return
        findings = found.findings
        assert found.num_samples + findings.num_empty + findings.num_unreadable == findings.num_rows
        assert all(loss <= tokens for loss, tokens in zip(found.loss_tokens, found.tokens, strict=True))
        assert list(found.rows) == sorted(set(found.rows))
        if name is None:
            assert [len(ids) for ids in token_ids(str(path), model)] == list(found.tokens)
