"""A log inside one document is read as the log: whole or torn, in any chunks, in the order in which it was written."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_triage.logs import document
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.document import unpacked
from gemma4_triage.logs.read import read_log
from log_wrappers import WRAPPERS
from made_logs import death, decode, prefill, stamp

LOG = prefill(1) + decode(2) + death(3, "KeyError: 'layer_9'")
OF_A_WHOLE = ("whole", "array", "lines-in", "loki", "csv", "tsv", "elastic-h")
WHOLE = [name for name in WRAPPERS if name.startswith(OF_A_WHOLE)]
TORN = ["whole-in-a-field", "array-of-objects", "array-of-lines-over-lines", "cloudwatch-events"]


def told(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [finding.rule for finding in findings(read_log("x", [data]))]


@given(st.sampled_from(WHOLE), st.lists(st.integers(0, 10**6), max_size=5))
def test_chunks_make_no_difference(name, cuts):
    text = WRAPPERS[name](LOG).encode()
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    assert b"".join(unpacked(text[a:b] for a, b in pairwise(edges))) == b"".join(unpacked([text]))


@pytest.mark.parametrize("cut", range(20, 200, 20))
@pytest.mark.parametrize("name", TORN)
def test_a_document_whose_end_is_missing_is_read_as_far_as_it_goes(name, cut):
    whole = WRAPPERS[name](death(1, "KeyError: 'layer_9'") + 9 * decode(2))
    assert told(whole[:-cut]) == ["other-crash"]


@pytest.mark.parametrize(
    "text",
    [repr(LOG.encode()), repr(LOG), repr({"logs": LOG}), repr(LOG.splitlines()), "$ python get.py\n" + repr(LOG)],
)
def test_what_python_prints_is_read(text):
    assert told(text) == ["other-crash"]


def test_two_writers_are_kept_apart():
    """Each writes its traceback between the other's lines."""
    one = death(1, "KeyError: 'one'").split("\n")
    other = death(1, "ValueError: other").split("\n")
    entries = [
        {"pod": pod, "message": line}
        for lines in zip(one, other, strict=True)
        for pod, line in zip("ab", lines, strict=True)
    ]
    found = read_log("x", [json.dumps(entries).encode()]).deaths
    assert {(item.type_name, item.frames) for item in found} == {
        ("KeyError", ("scheduler.py:12 step",)),
        ("ValueError", ("scheduler.py:12 step",)),
    }


def test_a_document_that_is_too_long_is_read_as_it_lies(monkeypatch):
    monkeypatch.setattr(document, "MOST_BYTES", 1000)
    text = json.dumps({"logs": LOG * 9}).encode()
    assert b"".join(unpacked([text[:1500], text[1500:]])) == text


@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps({"message": line}) + "\n" for line in LOG.splitlines()),
        "timestamp\n" + LOG,
        "a, b: message\n" + LOG,
        "{not json\n" + LOG,
        "[1/9] Loading\n" + LOG,
        json.dumps({"rid": 7}) + "\n",
        "",
    ],
)
def test_what_is_no_such_document_stays_as_it_is(text):
    assert b"".join(unpacked([text.encode()])) == text.encode()


@pytest.mark.parametrize(
    "document_of_a_user",
    [
        {"text": LOG, "meta_info": {"finish_reason": None}},
        {"id": "a", "choices": [{"message": {"role": "assistant", "content": LOG}}]},
        {"model": "m", "messages": [{"role": "user", "content": LOG}]},
        {"event": "request.finished", "out": {"text": LOG}},
    ],
)
@pytest.mark.parametrize("form", [json.dumps, lambda found: json.dumps(found, indent=1)])
def test_what_a_user_wrote_or_was_answered_is_no_word_of_the_server(document_of_a_user, form):
    served = f"{stamp(1)} The server is fired up and ready to roll!\n"
    assert told(served + json.dumps(document_of_a_user) + "\n" + decode(2)) == []
    assert read_log("x", [form(document_of_a_user).encode()]).deaths == ()
