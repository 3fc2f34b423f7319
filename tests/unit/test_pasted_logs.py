"""Logs as people paste them: whatever stands around the lines, a log says what it says without it."""

import gzip
import io
import random
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from clean_logs import CLEAN
from gemma4_triage.errors import UsageMistake
from gemma4_triage.logs import source
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import MAX_RANKS, read_log, read_source
from gemma4_triage.logs.source import Source
from log_wrappers import WRAPPERS
from made_logs import decode

SAMPLES = {path.stem: path.read_text() for path in (Path(__file__).parents[1] / "data" / "logs").glob("*.log")}


def said(text: str) -> list:
    """Return what is told of a log, without where it stands."""
    facts = read_log("log", [text.encode()])
    return [
        [(finding.rule, finding.cause, finding.confidence) for finding in findings(facts)],
        [(death.type_name, death.message, death.frames, death.rank) for death in facts.deaths],
        [(rank.rank, rank.prefill_lines, rank.decode_lines, rank.retractions.events) for rank in facts.ranks],
        [(guard.rule, guard.dump) for guard in facts.guards],
        [leak.text for leak in facts.leaks],
    ]


@pytest.fixture(scope="module")
def bare() -> dict[str, list]:
    return {name: said(text) for name, text in SAMPLES.items()}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_sample_says_the_same_behind_every_prefix(wrapper, bare):
    assert {name: said(WRAPPERS[wrapper](text)) for name, text in SAMPLES.items()} == bare


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_log_has_no_finding(name):
    facts = read_log(name, [CLEAN[name].encode()])
    assert facts.understood_lines
    assert findings(facts) == ()


@pytest.mark.sampled(24)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_clean_log_has_no_finding_behind_any_prefix(wrapper):
    found = {}
    for name, text in CLEAN.items():
        facts = read_log(name, [WRAPPERS[wrapper](text).encode()])
        if findings(facts) or not facts.understood_lines:
            found[name] = findings(facts)
    assert found == {}


FRAMES = """\
  File "/opt/sglang/srt/managers/scheduler.py", line 2600, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "/opt/sglang/srt/layers/norm.py", line 20, in forward
    raise ValueError("a")
"""
TRACEBACK = "Traceback (most recent call last):\n"
DEATH = f"[2026-11-24 03:00:01 TP0] Scheduler hit an exception: {TRACEBACK}{FRAMES}"


def deaths(text: str) -> list[tuple[str, str, str]]:
    """Return rank, type and message of every death in a log."""
    return [(death.rank, death.type_name, death.message) for death in read_log("log", [text.encode()]).deaths]


class TestTracebacks:
    def test_two_containers_that_write_line_by_line(self):
        first = f"{DEATH}ValueError: a".split("\n")
        second = f"{DEATH.replace('TP0', 'TP1')}KeyError: b".split("\n")
        rows = (f"a-1  | {one}\nb-1  | {other}\n" for one, other in zip(first, second, strict=True))
        assert deaths("".join(rows)) == [("TP0", "ValueError", "a"), ("TP1", "KeyError", "b")]

    def test_every_line_has_the_stamp(self):
        chain = f"\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}"
        lines = f"{DEATH.split('] ', 1)[1]}ValueError: a{chain}{FRAMES}KeyError: b".split("\n")
        assert deaths("".join(f"[2026-11-24 03:00:01 TP3] {line}\n" for line in lines)) == [
            ("TP3", "ValueError", "a"),
            ("TP3", "KeyError", "b"),
        ]

    @pytest.mark.parametrize("begin", ["", "[2026-11-24 03:00:01] Scheduler hit an exception:\n", "Process a::b:\n"])
    def test_a_beginning_that_is_missing(self, begin):
        assert deaths(f"{begin}{FRAMES}ValueError: a\n") == [("", "ValueError", "a")]

    @pytest.mark.parametrize(
        "frame", ['/usr/local/bin/sglang", line 8, in <module>', '<frozen runpy>", line 198, in _run_module_as_main']
    )
    def test_one_that_nobody_caught(self, frame):
        text = f'{TRACEBACK}  File "{frame}\n    main()\n  File "/opt/a.py", line 3, in main\nOSError: no model\n'
        assert deaths(text) == [("", "OSError", "no model")]

    def test_one_that_somebody_may_have_caught(self):
        caught = f'{TRACEBACK}  File "/opt/a.py", line 3, in load\n    import x\nImportError: x\n'
        served = 'INFO:     10.0.0.1:3 - "POST /generate HTTP/1.1" 200 OK\n'
        assert deaths(caught + served) == []
        assert deaths(served + caught) == [("", "ImportError", "x")], "nothing follows it"

    def test_a_group_of_exceptions(self):
        text = (
            f"  + Exception Group {TRACEBACK}"
            '  |   File "<frozen runpy>", line 198, in _run_module_as_main\n'
            "  | ExceptionGroup: unhandled (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
            f'    | {TRACEBACK}    |   File "/a/c.py", line 4, in g\n    | ValueError: inner\n    +---------\n'
        )
        assert deaths(text) == [("", "ExceptionGroup", "unhandled (1 sub-exception)"), ("", "ValueError", "inner")]

    def test_an_access_line_and_a_bar_within(self):
        bar = "Capturing:   0%|          | 0/35 [00:00<?, ?it/s]"
        access = 'INFO:     10.0.0.1:3 - "GET /health HTTP/1.1" 200 OK\n'
        text = bar + DEATH.replace("    raise", f"{access}    raise") + "ValueError: a\n"
        assert deaths(text) == [("TP0", "ValueError", "a")]


class TestChannels:
    def test_a_traceback_of_which_a_container_runtime_cut_lines_into_two_channels(self):
        lines = (DEATH + "ValueError: a").split("\n")
        rows = [
            f"2026-01-01T00:00:0{at % 9}.1Z {('stdout', 'stderr')[at % 2]} F {line}" for at, line in enumerate(lines)
        ]
        assert deaths("\n".join(rows) + "\n") == [("TP0", "ValueError", "a")]


class TestBadInput:
    def test_a_million_ranks_are_bounded(self):
        lines = (decode(1, rank=f"DP{rank % 997} TP{rank}") for rank in range(9000))
        facts = read_log("log", ["".join(lines).encode()])
        assert (len(facts.ranks), facts.dropped_rank_lines) == (MAX_RANKS, 9000 - MAX_RANKS)

    def test_noise_is_read_to_its_end(self):
        noise = random.Random(7).randbytes(1 << 20)
        facts = read_log("log", [noise] * 3)
        assert (facts.size_bytes, facts.served) == (3 << 20, False)

    def test_archives_and_what_is_no_text(self, tmp_path):
        zipped, tarred = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as archive:
            archive.writestr("../../outside.log", DEATH)
        with tarfile.open(fileobj=tarred, mode="w") as archive:
            archive.add(__file__, "a.log")
        path = tmp_path / "log"
        for content in (zipped.getvalue(), tarred.getvalue(), gzip.compress(tarred.getvalue()), bytes(5000)):
            path.write_bytes(content)
            with pytest.raises(UsageMistake):
                read_source(Source(str(path)))

    def test_utf_16(self, tmp_path):
        path = tmp_path / "log"
        path.write_bytes(f"{DEATH}ValueError: a\n".encode("utf-16"))
        assert [death.message for death in read_source(Source(str(path))).deaths] == ["a"]

    @pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
    def test_utf_16_without_a_mark(self, tmp_path, encoding):
        path = tmp_path / "log"
        path.write_bytes(f"{DEATH}ValueError: a\n".encode(encoding))
        assert [death.message for death in read_source(Source(str(path))).deaths] == ["a"]

    def test_what_is_packed_and_has_lost_its_beginning_is_no_text(self, tmp_path):
        path = tmp_path / "log"
        path.write_bytes(zlib.compress(Path(__file__).read_bytes())[100:])
        with pytest.raises(UsageMistake, match="is no text"):
            read_source(Source(str(path)))

    def test_a_bomb_ends_early(self, tmp_path, monkeypatch):
        monkeypatch.setattr(source, "_BOMB_BYTES", 1 << 21)
        path = tmp_path / "log.gz"
        path.write_bytes(gzip.compress(b"a" * (1 << 25)))
        facts = read_source(Source(str(path)))
        assert "ends early" in (facts.problem or "")
        assert facts.size_bytes < 1 << 25

    def test_a_line_of_100_mb(self):
        facts = read_log("log", (b"x" * (1 << 20) for _ in range(100)))
        assert (facts.lines, facts.long_lines) == (1, 1)
