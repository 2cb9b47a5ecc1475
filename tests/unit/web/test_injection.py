"""Whatever is typed into the form: no crash, and nothing of it becomes code, a link or markup of the page."""

from collections.abc import Iterator
from typing import Any

import html5lib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from finegauge.run.run import FIELDS
from finegauge.web import jobs
from finegauge.web.assets import first_script
from finegauge.web.form import DOCUMENT, LENGTH_FIELDS
from finegauge.web.plan_view import PLAN_FIELDS
from finegauge.web.storage import Reply
from tests.unit.web.inline import client

MARK = "zqxj"  # in every attack, so that what comes of it is found
ATTACKS = (
    f"<script>{MARK}()</script>",
    f"</textarea><script src=//{MARK}.example/x.js></script>",
    f'"><img src=x onerror={MARK}()>',
    f"' onmouseover='{MARK}()' x='",
    f'" autofocus onfocus="{MARK}()" x="',
    f"javascript:{MARK}()",
    f"</title><svg/onload={MARK}()>",
    f"<a href=javascript:{MARK}()>click</a>",
    f"--><iframe srcdoc='<script>{MARK}()</script>'>",
    f"</style><link rel=stylesheet href=//{MARK}.example>",
    f"{{{{ {MARK}.__class__ }}}}{{% raw %}}",
    f"<!--<form action=//{MARK}.example><input name=x>",
    f"\u2028<marquee>{MARK}\u202e",
    f"<x hx-get=//{MARK}.example hx-trigger=load>",
    f"${{{MARK}}}<%= {MARK} %>",
    f"<meta http-equiv=refresh content=0;url=//{MARK}.example>",
    f"&lt;script&gt;{MARK}()&lt;/script&gt;",
)
NAMES = (*FIELDS, *LENGTH_FIELDS, *PLAN_FIELDS, DOCUMENT, "s", "colour")
START = {"model": "llama-3-8b", "method": "qlora", "gpu": "A40", "num_samples": "1000"}
LINKS = ("href", "src", "action", "formaction", "data", "srcdoc", "xlink:href", "poster", "content")
PRINTED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
HOSTILE = st.sampled_from(ATTACKS) | st.tuples(PRINTED, st.sampled_from(ATTACKS)).map("".join) | PRINTED
FORMS = st.dictionaries(st.sampled_from(NAMES), HOSTILE, max_size=5)
FEW = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def browser() -> Iterator[TestClient]:
    with client() as found:
        yield found


def check_harmless(page: str) -> None:
    """Raise where a page, as a browser parses it, has code or links made of what was typed."""
    root: Any = html5lib.parse(page, namespaceHTMLElements=False)
    for one in root.iter():
        if not isinstance(one.tag, str):  # a comment
            continue
        assert one.tag not in ("iframe", "object", "embed", "base", "x", "marquee", "frame")
        if one.tag == "script":
            text = "".join(one.itertext())
            assert text == first_script() or (not text and one.attrib["src"].startswith("/static/"))
        for name, value in one.attrib.items():
            check_attribute(one.tag, str(name), value)


def check_attribute(tag: str, name: str, value: str) -> None:
    """Raise where an attribute is code, a style, or a link made of what was typed."""
    said = tag, name, value
    assert not name.startswith("on"), said
    assert name != "style", said
    assert not value.strip().lower().startswith("javascript:") or name == "value", said
    assert name not in LINKS or MARK not in value or value.startswith("/?s="), said
    assert not name.startswith("hx-") or MARK not in value, said


def answered(name: str, form: dict[str, str]) -> Reply:
    reply = jobs.page(name, form)
    assert reply.status in (200, 400, 422), reply.body
    if reply.media_type == "text/html" and not reply.filename:
        check_harmless(str(reply.body))
    return reply


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
@pytest.mark.parametrize(
    "field", ["model", "gpu", "document", "micro_batch_size", "length_counts", "provider"]
)
def test_an_attack_in_a_field(attack: str, field: str) -> None:
    answered("answer", {**START, field: attack})


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_an_attack_in_every_field_of_a_whole_page(attack: str) -> None:
    answered("submitted", dict.fromkeys(NAMES, attack))


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
@pytest.mark.parametrize("key", ["model", "output_dir", "zz", "dataset"])
def test_an_attack_in_a_pasted_text(attack: str, key: str) -> None:
    quoted = attack.replace("\\", "\\\\").replace('"', '\\"').replace("\u2028", " ")
    text = f'model: llama-3-8b\nmethod: qlora\ngpu: A40\n{key}: "{quoted}"\n'
    answered("answer", {"document": text})


@FEW
@given(FORMS)
def test_any_form_is_answered(form: dict[str, str]) -> None:
    answered("answer", {**START, **form})


@settings(FEW, max_examples=6)
@given(FORMS)
def test_any_form_is_answered_by_a_whole_page(form: dict[str, str]) -> None:
    answered("submitted", {**START, **form})


@settings(FEW, max_examples=6)
@given(FORMS)
def test_any_link_is_answered(query: dict[str, str]) -> None:
    answered("index", query)


@settings(FEW, max_examples=6)
@given(FORMS)
def test_any_form_is_compared(form: dict[str, str]) -> None:
    answered("whatif", {**START, **form})


@settings(FEW, max_examples=5)
@given(st.dictionaries(st.sampled_from(list(PLAN_FIELDS)), HOSTILE, max_size=3))
def test_any_form_is_searched(form: dict[str, str]) -> None:
    answered("plan", {**START, **form})


@settings(FEW, max_examples=10)
@given(FORMS, st.sampled_from(["run.yaml", "profile.json"]))
def test_any_form_is_downloaded(form: dict[str, str], name: str) -> None:
    reply = jobs.download(name, {**START, **form})
    assert reply.status in (200, 400, 422), reply.body
    assert not set(reply.filename) & set('"\\/\r\n;')


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_errors_of_the_server_repeat_no_markup(attack: str, browser: TestClient) -> None:
    for got in (
        browser.get(f"/{attack}"),
        browser.get(f"/download/{attack}"),
        browser.get(f"/static/{attack}"),
        browser.post("/answer", content=b"a=b", headers={"content-type": f"x{MARK}"}),
        browser.get("/api/v1/gpus", params={"pattern": attack, attack: "x"}),
    ):
        assert 400 <= got.status_code < 500
        assert got.headers["content-type"].split(";")[0] in ("text/plain", "application/json", "text/html")
        if got.headers["content-type"].startswith("text/html"):
            check_harmless(got.text)
