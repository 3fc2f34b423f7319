"""Batch lines read by the block: what is read, and which lines, is as if each were read by itself."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma4_triage.logs.batch_line import find_batch
from gemma4_triage.logs.batch_table import VALUES, TableReader, single, time_code, time_text
from gemma4_triage.logs.lines import Block
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.stamp import StampReader
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


@pytest.mark.parametrize("name", [*(path.name for path in SAMPLES), "mixed"])
def test_a_log_says_the_same_read_line_by_line(name, monkeypatch):
    text = mixed().encode() if name == "mixed" else next(path for path in SAMPLES if path.name == name).read_bytes()
    together = read_log("log", [text], 8)
    monkeypatch.setattr(TableReader, "split", lambda _, block: (None, block))
    alone = read_log("log", [text], 8)
    assert asdict(replace(alone, program_lines=together.program_lines)) == asdict(together)


def test_values_are_fields_of_a_batch_line():
    batch = find_batch(LINES[0].encode())
    assert batch is not None
    assert {*VALUES} < {*batch[1]._fields}
