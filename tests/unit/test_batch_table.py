"""Batch lines read by the block: what is read, and which lines, is as if each were read by itself."""

import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma4_triage.logs import alarms, lines, read
from gemma4_triage.logs.batch_line import find_batch
from gemma4_triage.logs.batch_table import VALUES, TableReader, single, time_code, time_text
from gemma4_triage.logs.lines import Block, Sieve
from gemma4_triage.logs.prefixes import Prefixes
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.stamp import StampReader
from gemma4_triage.logs.unwrap import Unwrapper
from log_wrappers import WRAPPERS
from made_logs import death, decode, prefill, retraction, stamp

SAMPLES = sorted((Path(__file__).parents[1] / "data" / "logs").glob("*.log"))
LINES = [
    *(prefill(1, new=8192, cached=64).strip(), decode(2).strip(), decode(3, rank="DP1 TP0").strip()),
    "[2025-03-01 00:00:00 TP0] Decode batch. #running-req: 3, #token: 812, token usage: 0.01, "
    "gen throughput (token/s): 91.20, #queue-req: 0, ",
    "[2025-06-01 00:00:00] Prefill batch [12], #new-seq: 1, #new-token: 70, #cached-token: 9, token usage: 0.04, "
    "#running-req: 1, #queue-req: 0, ",
    "[2025-06-01 00:00:00 PP0 ATTN_TP3] Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00",
]
ODD = (
    *("-1", "1e5", "nan", "1.", ".5", "", "1" * 9, "1" * 30, "007", "0.1234567", "12345678.123456", "1 2", "0x1f"),
    *("99999999", "0", "1.0", "1,2", "[1]"),
)


def changed(line: str, numbers: list[tuple[int, str]]) -> str:
    """Return the line with some of its numbers replaced."""
    spans = [match.span() for match in re.finditer(r"\d+(?:\.\d+)?", line)]
    for at, text in sorted(numbers, key=lambda pair: -(pair[0] % len(spans))):
        begin, end = spans[at % len(spans)]
        line = line[:begin] + text + line[end:]
    return line


def row(rows, at=0):
    return (rows.lines[at], time_text(int(rows.times[at])), bool(rows.prefill[at]), rows.values[at].tolist())


@given(
    st.lists(
        st.builds(
            changed,
            st.sampled_from(LINES),
            st.lists(
                st.tuples(st.integers(0, 40), st.one_of(st.sampled_from(ODD), st.integers(0, 10**8).map(str))),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=12,
    )
)
@example([LINES[2], LINES[2].replace("DP1", "DP01")])
@example([LINES[0], re.sub(r"\d", "", LINES[0])])
def test_each_line_is_read_as_by_itself(lines):
    text = "\n".join([*LINES, *lines]).encode()
    reader = TableReader()
    table, rest = reader.split(Block(range(1, text.count(b"\n") + 2), text))
    assert table is not None
    assert len(table.ranks) + len(rest.lines if rest else ()) == text.count(b"\n") + 1
    assert set(range(1, len(LINES) + 1)) <= {*table.rows.lines.tolist()}
    split = text.split(b"\n")
    for at, number in enumerate(table.rows.lines.tolist()):
        found = find_batch(split[number - 1])
        assert found is not None
        begun = StampReader().read(split[number - 1], found[0])
        np.testing.assert_equal(row(table.rows, at), row(single(found[1], number, begun.text)))
        assert table.names[table.ranks[at]] == begun.rank


@given(st.from_regex(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d", fullmatch=True) | st.just(""))
def test_times_come_back(text):
    text = text.translate({ord(digit): str(int(digit)) for digit in set(text) if digit.isdecimal()})
    assert time_text(time_code(text)) == text or text.startswith("0000")


def mixed() -> str:
    """Return a log of several ranks in which much happens between the batch lines."""
    lines = [f"{stamp(0)} server_args=ServerArgs(model_path='x', tp_size=2)\n"]
    for second in range(400):
        rank = f"DP{second % 3} TP0"
        swa = 0.97 if 100 < second < 160 else 0.3
        lines.append(prefill(second, new=100 + second % 70, cached=64 * (second < 200), rank=rank))
        lines.append(decode(second, accept=3.0 if second < 250 else 1.2, rate=900 - second, swa=swa, rank=rank))
        if second % 7 == 0:
            lines.append(
                f'{stamp(second)} INFO:     10.0.0.1:3 - "POST /generate HTTP/1.1" {200 + second % 2 * 200} OK\n'
            )
        if 100 < second < 130:
            lines.append(retraction(second, 2, rank=rank))
        if second in (90, 399):
            lines.append(f"{stamp(second)} request timed out after 30 s\n")
    return "".join([*lines, death(400, "KeyError: 7", rank="DP1 TP0")])


def text_of(name: str) -> bytes:
    return mixed().encode() if name == "mixed" else next(path for path in SAMPLES if path.name == name).read_bytes()


def alone(text: bytes, points: int = 8) -> dict:
    """Return what a log says where every line is looked at by itself, and nothing is known of lines like it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableReader, "split", lambda _, block: (None, block))
        patch.setattr(Sieve, "pick", lambda _, lines: list(range(len(lines))))
        patch.setattr(Unwrapper, "_behind_a_prefix", lambda _, line: None)
        return asdict(read_log("log", [text], points))


NAMES = [*(path.name for path in SAMPLES), "mixed"]


@pytest.mark.parametrize("name", NAMES)
def test_a_log_says_the_same_read_line_by_line(name):
    text = text_of(name)
    program_lines = read_log("log", [text]).program_lines
    assert asdict(read_log("log", [text], 8)) == alone(text) | {"program_lines": program_lines}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_log_says_the_same_read_line_by_line_behind_every_prefix(wrapper):
    for name in NAMES:
        text = WRAPPERS[wrapper](text_of(name).decode(errors="replace")).encode()
        program_lines = read_log("log", [text]).program_lines
        assert asdict(read_log("log", [text], 8)) == alone(text) | {"program_lines": program_lines}, name


MARKS = [*(mark for mark, _ in read._BATCH_AND_MARKS), *alarms.LETTER_BY_LETTER, *alarms.IN_LOWER_CASE]


@given(st.lists(st.tuples(st.sampled_from(MARKS), st.booleans(), st.binary(max_size=9), st.binary(max_size=9))))
def test_a_sieve_keeps_every_line_with_a_mark(some):
    sieve = Sieve(MARKS, alarms.IN_LOWER_CASE)
    rows = []
    for mark, marked, before, behind in some:
        line = before + (mark if marked else b"") + behind
        rows.append(line.replace(b"\n", b" "))
    for _ in range(2):  # as it sees them for the first time, and as it knows them
        picked = sieve.pick(rows)
        assert picked == sorted({*picked})
        holds = {at for at, line in enumerate(rows) if any(mark in line for mark in MARKS)}
        holds |= {at for at, line in enumerate(rows) if any(mark in line.lower() for mark in alarms.IN_LOWER_CASE)}
        assert holds <= {*picked}


def test_a_sieve_forgets(monkeypatch):
    monkeypatch.setattr(lines, "_MOST_KNOWN_BYTES", 1000)
    sieve = Sieve([b"status=4"], [b"error"])
    for number in range(100):
        word = chr(97 + number % 26) * (number + 1)
        assert sieve.pick([f"{word} {number}".encode(), f"{word} status=4{number}".encode(), b"An Error", b""]) == [
            1,
            2,
        ]
    assert len(sieve._known) < 30


@given(
    st.lists(
        st.sampled_from(
            [b"sglang-1  | ", b"2026-11-24T03:00:07.1Z ", b"(pid=7) ", b"[7,1]<stdout>:", b"x7: ", b"1 ", b">"]
        ),
        max_size=6,
    ),
    st.sampled_from([b"[2026-01-01 00:00:00] x", b"[2026-01-01 00:00:00 TP0] a - b | c", b"[2026-01-01 00:00:00]"]),
    st.integers(0, 9),
)
def test_a_prefix_is_split_as_by_itself(prefixes, line, digit):
    known = Prefixes()
    for head in (b"".join(prefixes), b"".join(prefixes).replace(b"7", b"%d" % digit)):
        who = known.before_stamp(head + line, len(head)) if head else None
        assert who is None or (len(head), who) == known.split(head + line)


def test_values_are_fields_of_a_batch_line():
    batch = find_batch(LINES[0].encode())
    assert batch is not None
    assert {*VALUES} < {*batch[1]._fields}
