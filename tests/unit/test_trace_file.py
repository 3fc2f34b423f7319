"""The reader of traces: any split, any order, torn anywhere, and whatever is no trace."""

import gzip
import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_triage.logs.source import Source
from gemma4_triage.step_profile.trace_file import TraceDamaged, TraceFile
from trace_examples import decode, e4b, write

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
EVENTS = st.lists(VALUES, max_size=6)
HEADERS = st.dictionaries(st.sampled_from(["schemaVersion", "traceName", "displayTimeUnit", "other"]), VALUES)


class Pieces(Source):
    """Bytes that come as they were cut."""

    def __init__(self, pieces):
        super().__init__("pieces")
        self.pieces = pieces

    def chunks(self):
        yield from self.pieces


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if b > a]


def read(data: bytes, places: list[int]):
    trace = TraceFile(Pieces(cut(data, places)))
    return list(trace.events()), trace


@pytest.mark.slow
@settings(deadline=None)
@given(EVENTS, HEADERS, st.booleans(), st.booleans(), st.lists(st.integers(0, 10**6), max_size=12))
def test_any_split_gives_what_json_gives(events, header, spaced, escaped, places):
    document = {"deviceProperties": [{"id": 0}]} | header | {"traceEvents": events, "schemaVersion": 2}
    data = json.dumps(document, indent=2 if spaced else None, ensure_ascii=escaped).encode(errors="surrogatepass")
    found, trace = read(data, places)
    assert found == json.loads(data.decode(errors="replace"))["traceEvents"]
    assert trace.header["schemaVersion"] == 2
    assert trace.header["deviceProperties"] == [{"id": 0}]
    assert "traceName" not in trace.header
    assert trace.size_bytes == len(data)


@pytest.mark.slow
@settings(deadline=None)
@given(EVENTS, st.lists(st.integers(0, 10**6), max_size=12))
def test_an_array_alone_is_a_trace(events, places):
    assert read(json.dumps(events).encode(), places)[0] == events


@pytest.mark.slow
@settings(deadline=None)
@given(EVENTS, st.integers(0, 10**6), st.lists(st.integers(0, 10**6), max_size=4))
def test_a_trace_that_ends_early_is_torn(events, end, places):
    data = json.dumps({"traceEvents": events, "more": 1}).encode()
    with pytest.raises(TraceDamaged, match=r"is torn|it is empty"):
        read(data[: end % len(data)], places)


@given(
    st.binary(max_size=60) | st.text(alphabet='{}[]":, tracEvns1x\\', max_size=60).map(str.encode), st.integers(0, 60)
)
def test_whatever_else_is_refused_or_read(data, place):
    try:
        read(data, [place])
    except TraceDamaged as error:
        assert error.hint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("hello", "begins with neither"),
        ('{"schemaVersion": 1}', 'no "traceEvents"'),
        ('{"traceEvents": 7}', 'no "traceEvents"'),
        ('{"traceEvents": [1 2]}', "stands where"),
        ('{"traceEvents": [1], 2: 3}', "key is missing"),
        ('{"traceEvents": [tru ]            }', "Expecting value"),
        ('{"traceEvents": [1]} more', "text follows"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said(text, why):
    with pytest.raises(TraceDamaged, match=why):
        read(text.encode(), [3])


def test_an_endless_value_is_given_up():
    def endless():
        yield b'{"traceEvents": ["'
        while True:
            yield b"x" * (1 << 20)

    trace = TraceFile(Pieces(endless()))
    with pytest.raises(TraceDamaged, match="longer than"):
        list(trace.events())
    assert trace.size_bytes < 64 << 20


def test_what_a_profiler_writes_and_json_forbids_is_read():
    (event,), _ = read(b'[{"a": NaN, "b": 18446744073709551615, "c": "\x01\xff", "d": -Infinity}]', [])
    assert math.isnan(event["a"])
    assert (event["b"], event["c"]) == (2**64 - 1, "\x01�")


@pytest.mark.parametrize("number", [100.0, -1.5e300, 6.1e-05, 7])
def test_a_number_may_be_cut_anywhere(number):
    data = json.dumps([number, number]).encode()
    assert all(read(data, [place])[0] == [number, number] for place in range(len(data)))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_files_plain_and_packed(tmp_path, name):
    document = decode(e4b(), steps=2).document(noise=False)
    path = write(tmp_path / name, document)
    assert list(TraceFile(Source(str(path))).events()) == document["traceEvents"]


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_torn_gzip_is_torn_and_not_half_a_step(tmp_path, kept):
    path = write(tmp_path / "trace.json.gz", decode(e4b(), steps=2).document())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(TraceDamaged, match="is torn"):
        list(TraceFile(Source(str(path))).events())


def test_a_gzip_whose_check_sum_is_wrong_is_torn(tmp_path):
    data = bytearray(gzip.compress(json.dumps([{"cat": "kernel"}]).encode()))
    data[-6] ^= 1
    (tmp_path / "trace.json.gz").write_bytes(data)
    with pytest.raises(TraceDamaged, match="is torn"):
        list(TraceFile(Source(str(tmp_path / "trace.json.gz"))).events())
