"""Reading serving logs: any bytes, any chunks, any rank, in bounded memory; what SGLang's own code formats is read."""

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma4_triage.errors import UsageMistake
from gemma4_triage.logs.batch_line import find_batch
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.drops import DropWatch
from gemma4_triage.logs.lines import MAX_LINE_BYTES, blocks_of_lines
from gemma4_triage.logs.packed import LONGEST_MAGIC, Packed, Torn
from gemma4_triage.logs.read import MAX_KEPT, MAX_RANKS, read_log, read_source
from gemma4_triage.logs.series import COLUMNS
from gemma4_triage.logs.source import Source
from gemma4_triage.report.logs_document import logs_document
from gemma4_triage.sparkline import sparkline
from made_logs import death, decode, prefill, retraction, stamp, steady

SAMPLES = sorted((Path(__file__).parents[1] / "data" / "logs").glob("*.log"))
TEXTS = [path.read_bytes() for path in SAMPLES]
PIECES = [
    *(line + b"\n" for text in TEXTS for line in text.split(b"\n")[:40]),
    *(
        b"[2026-01-01 00:00:00 TP",
        b"] Decode batch, #running-req: ",
        b"Traceback (most recent call last):",
        b"\r",
        b"\xff",
    ),
    *(b"hit an exception: ", b"] total=", b"#new-token: 1e999, ", b"; dump: ", b"Process x:\n", b"9" * 30, b"\x00"),
]
CUTS = st.lists(st.integers(0, 99), max_size=4)


def read(*lines: str, points: int = 240):
    return read_log("made.log", ["".join(lines).encode()], points)


def judged(text: bytes, cuts: list[int]) -> str:
    """Return everything that is said about the text, as one string."""
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    facts = read_log("x", [text[a:b] for a, b in pairwise(edges)])
    return json.dumps(logs_document([facts], findings(facts), 0), allow_nan=False)


class TestAnyBytes:
    @given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4))
    def test_noise(self, text, cuts):
        assert judged(text, cuts) == judged(text, [])

    @pytest.mark.slow
    @given(st.lists(st.sampled_from(PIECES), max_size=60), st.lists(st.integers(0, 10**6), max_size=6))
    @example([b"[9999-99-99 00:00:00] Decode batch, #running-req: 1, accept len: nan\n"], [7])
    def test_pieces_of_logs_in_any_order_and_chunks(self, pieces, cuts):
        text = b"".join(pieces)
        assert judged(text, cuts) == judged(text, [])

    @pytest.mark.slow
    @given(st.sampled_from(TEXTS), st.data())
    def test_a_damaged_log(self, text, data):
        spots = data.draw(st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(0, 255)), max_size=30))
        damaged = bytearray(text)
        for at, value in spots:
            damaged[at] = value
        judged(bytes(damaged), [])

    @given(st.lists(st.binary(max_size=9), max_size=9), st.lists(st.integers(0, 99), max_size=9))
    def test_lines_are_those_of_the_whole_text(self, lines, cuts):
        text = b"\n".join(lines)
        edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
        blocks = list(blocks_of_lines(text[a:b] for a, b in pairwise(edges)))
        *whole, torn = text.split(b"\n")
        assert [line for block in blocks if block.whole for line in block.lines] == whole
        assert [line for block in blocks if not block.whole for line in block.lines] == ([torn] if torn else [])
        numbers = [number for block in blocks for number in block.numbers]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(line in block.text for block in blocks for line in block.lines)


class TestStarts:
    @pytest.mark.parametrize(
        "arguments",
        [
            "ServerArgs(model_path='a/b', page_size=64, port=31000)",
            "{'model_path': 'a/b', 'page_size': 64, 'port': 31000}",
        ],
    )
    def test_arguments_are_read_as_each_release_prints_them(self, arguments):
        facts = read_log("x", [f"[2026-01-01 00:00:00] server_args={arguments}\n".encode()])
        assert (facts.starts, facts.understood_lines) == (1, 1)
        assert dict(facts.settings) == {"model_path": "a/b", "page_size": "64", "port": "31000"}

    def test_files_that_the_server_names_are_kept_by_name(self):
        lines = (
            "[2026-01-01 00:00:00] gemma4-triage: 9 patches verified, guard manifest /a/guards/20260101T0_vm_p7.json\n"
            "Dumped 4 finished and 0 unfinished requests before crash to /a/vm/crash_dump_2026-01-01_00-00-00.pkl\n"
            "x, guard manifest /../../etc/passwd\n, guard manifest /" + "a/" * 9000 + "b.json\n"
        )
        facts = read_log("x", [lines.encode()])
        assert facts.named_files == ("20260101T0_vm_p7.json", "crash_dump_2026-01-01_00-00-00.pkl")


class TestLongAndTornLines:
    def test_a_line_without_end_is_cut_and_counted(self):
        chunks = [b"x" * 1000] * 2000 + [b"\n", decode(1).encode()]
        facts = read_log("x", chunks)
        assert (facts.lines, facts.long_lines, facts.understood) == (2, 1, {"decode": 1})
        assert max(len(line) for block in blocks_of_lines(chunks) for line in block.lines) == MAX_LINE_BYTES + 1

    def test_numbers_of_a_torn_last_line_are_not_used(self):
        whole = decode(1, swa=0.3)
        facts = read(whole, decode(2, swa=0.97).removesuffix("\n"))
        assert (facts.torn_last_line, facts.ranks[0].decode_lines, facts.ranks[0].peaks["swa"].swa) == (True, 1, 0.3)

    def test_words_of_a_torn_last_line_are(self):
        assert read(decode(1), f"{stamp(2)} CUDA error: an illegal memory access was encountered").death_count == 1


class TestRanks:
    def test_interleaved_schedulers_are_kept_apart(self):
        rows = [line for second in range(9) for rank in ("DP0 TP0", "DP1 TP0") for line in [
            decode(second, accept=2.0 + (rank == "DP1 TP0"), rank=rank)
        ]]  # fmt: skip
        facts = read(*rows)
        assert {rank.rank: rank.accept_length for rank in facts.ranks} == {"DP0 TP0": 2.0, "DP1 TP0": 3.0}

    def test_a_line_written_into_another_is_the_one_that_is_read(self):
        torn = decode(1, accept=2.0, rank="DP0")[:90] + decode(1, accept=3.0, rank="DP1")
        (rank,) = read(torn).ranks
        assert (rank.rank, rank.accept_length) == ("DP1", 3.0)

    def test_what_a_container_runtime_puts_before_a_line_is_skipped(self):
        facts = read("2026-01-01T00:00:00.1Z stderr F " + decode(5, rank="TP0"))
        assert (facts.ranks[0].rank, facts.first_time) == ("TP0", "2026-01-01T00:00:05")

    def test_a_line_without_a_stamp_is_read(self):
        facts = read(decode(5).split("] ")[1])
        assert (facts.ranks[0].decode_lines, facts.first_time) == (1, "")

    def test_more_ranks_than_are_followed_are_counted(self):
        facts = read(*(decode(1, rank=f"TP{rank}") for rank in range(MAX_RANKS + 5)))
        assert (len(facts.ranks), facts.dropped_rank_lines) == (MAX_RANKS, 5)

    def test_a_traceback_that_another_rank_writes_into_is_still_one(self):
        first, rest = death(3, "KeyError: 1", rank="TP0").split("\n", 1)
        facts = read(first + "\n", decode(3, rank="TP1"), rest)
        assert [(found.rank, found.type_name, found.frame) for found in facts.deaths] == [
            ("TP0", "KeyError", "scheduler.py:12 step")
        ]

    def test_many_deaths_are_counted_and_the_first_kept(self):
        facts = read(*(death(1, f"KeyError: {i}") for i in range(MAX_KEPT + 9)))
        assert (len(facts.deaths), facts.death_count, facts.deaths[0].message) == (MAX_KEPT, MAX_KEPT + 9, "0")

    def test_a_worker_that_multiprocessing_introduces(self):
        text = 'Process a::b:\nTraceback (most recent call last):\n  File "c.py", line 3, in h\nKeyError: 9\n'
        assert [found.message for found in read(decode(1), text).deaths] == ["9"]

    def test_a_chain_is_reported_from_its_cause_on(self):
        chain = death(1, "ValueError: first").rstrip("\n") + (
            "\n\nDuring handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "b.py", line 2, in g\nRuntimeError: second\n'
        )
        assert [found.message for found in read(chain).deaths] == ["first", "second"]


class TestSeries:
    @pytest.mark.parametrize("lines", [1, 7, 8, 9, 100, 1000])
    def test_bounded_and_nothing_lost(self, lines):
        rows = []
        for second in range(lines):
            rows += [prefill(second, new=10, cached=3), retraction(second)]
        series = read(*rows, points=8).ranks[0].series
        assert list(series) == list(COLUMNS)
        assert {len(column) for column in series.values()} == {len(series["line"])}
        assert 0 < len(series["line"]) <= 8
        assert [sum(series[name]) for name in ("batch_lines", "new_tokens", "cached_tokens", "retracted_requests")] == [
            *(lines, 10 * lines, 3 * lines, lines)
        ]
        assert series["line"] == sorted(series["line"])

    def test_a_peak_survives(self):
        rows = list(steady(500, swa=0.2))
        rows[333] = decode(333, swa=0.91)
        assert max(read(*rows, points=8).ranks[0].series["swa_usage_max"]) == 0.91

    def test_sparkline(self):
        assert sparkline([0, 0.5, None, 1.0], 60, top=1.0) == "▁▅ █"
        assert len(sparkline(list(range(1000)), 60)) == 60
        assert sparkline([], 60) == ""


class TestDrops:
    @given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 9)), max_size=60), st.integers(1, 6), CUTS)
    def test_as_a_slow_reading_finds_them(self, values, window, cuts):
        watch = DropWatch(0.7, window)
        columns = np.array([(value, weight, at, 0) for at, (value, weight) in enumerate(values)]).reshape(-1, 4)
        for part in np.split(columns, sorted(cut % (len(values) + 1) for cut in cuts)):
            watch.add(*part.T)
        worst = None
        for end in range(2 * window, len(values) + 1):
            recent, past = values[end - window : end], values[: end - window]
            after, before = _mean(recent), _mean(past)
            if before > 0 and after <= 0.7 * before and (worst is None or after < worst[0] / worst[1] * before):
                worst = (after, before, end - window)
        found = watch.worst
        assert (worst is None) == (found is None)
        if worst and found:
            assert (found.after, found.before) == pytest.approx(worst[:2])
            assert found.first.line == worst[2]


def _mean(pairs):
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)


class TestSources:
    def test_gzip_is_known_by_its_bytes(self, tmp_path):
        path = tmp_path / "no-suffix"
        path.write_bytes(gzip.compress(TEXTS[0]))
        plain = read_log(str(path), [TEXTS[0]])
        assert read_source(Source(str(path))) == plain

    def test_a_torn_gzip_keeps_what_came_before(self, tmp_path):
        path = tmp_path / "torn.gz"
        path.write_bytes(gzip.compress("".join(steady(2000)).encode())[:-200])
        facts = read_source(Source(str(path)))
        assert facts.understood["decode"] > 1000
        assert "ends early" in (facts.problem or "")

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
    def test_packed_files_end_to_end_are_one_log(self, tmp_path, pack):
        texts = ["".join(steady(30)).encode(), "".join(steady(2000)).encode()]
        path = tmp_path / "log"
        path.write_bytes(pack(texts[0]) + bytes(8) + pack(texts[1]))
        assert b"".join(Source(str(path)).chunks()) == b"".join(texts)
        path.write_bytes(pack(texts[0]) + b"no log at all")
        source = Source(str(path))
        assert b"".join(source.chunks()) == texts[0]
        assert "is none" in (source.problem or "")

    @given(st.data())
    def test_a_damaged_gzip_gives_all_that_is_before_the_damage(self, data):
        text = "".join(f"{at} {at * 7919 % 1000}\n" for at in range(4000)).encode()
        packed = bytearray(gzip.compress(text))
        at = data.draw(st.integers(10, len(packed) - 1))
        packed[at] ^= data.draw(st.integers(1, 255))
        stream = Packed(io.BytesIO(bytes(packed)), bytes(packed[:LONGEST_MAGIC]))
        found: list[bytes] = []
        try:
            found.extend(iter(lambda: stream.read(1000), b""))
        except Torn as error:
            assert re.search(r"its gzip is damaged|its gzip is torn|is none", str(error))
        else:
            # Another reference to a text that is there twice packs the same.
            assert b"".join(found) == text
        # What zlib gives of the bytes before that place, which are whole.
        whole = zlib.decompressobj(31).decompress(bytes(packed[:at]))
        assert b"".join(found).startswith(whole)

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
    @given(cut=st.integers(0, 3000))
    def test_a_torn_file_never_ends_quietly(self, pack, cut):
        packed = pack("".join(steady(300)).encode())
        part = packed[: max(6, len(packed) - 1 - cut)]
        stream = Packed(io.BytesIO(part), part[:LONGEST_MAGIC])
        with pytest.raises(Torn):
            list(iter(lambda: stream.read(1 << 20), b""))

    def test_what_was_packed_twice_is_no_log(self, tmp_path):
        path = tmp_path / "log.gz.xz"
        path.write_bytes(lzma.compress(gzip.compress(TEXTS[0])))
        with pytest.raises(UsageMistake, match="packed twice"):
            read_source(Source(str(path)))

    def test_zstd_where_python_cannot(self, tmp_path):
        path = tmp_path / "log.zst"
        path.write_bytes(b"\x28\xb5\x2f\xfd rest")
        try:
            facts = read_source(Source(str(path)))
        except UsageMistake as error:
            assert error.hint == f"zstd -dk {path} unpacks it"
        else:
            assert facts.problem is not None

    def test_what_the_disk_does_not_give(self):
        with pytest.raises(UsageMistake, match=r"mem cannot be read: Input/output error"):
            read_source(Source("/proc/self/mem"))

    @pytest.mark.parametrize("name", ["missing", ".", "a\0b"])
    def test_what_cannot_be_opened(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageMistake):
            read_source(Source(name))


class TestAgainstSglang:
    """What SGLang's own code formats is what is read."""

    @pytest.fixture(scope="class")
    def usage_parts(self):
        stats = pytest.importorskip("sglang.srt.managers.scheduler_components.pool_stats_observer").PoolStats
        pools = {"full_num_used": 1240, "full_token_usage": 0.48, "swa_num_used": 998, "swa_token_usage": 0.97}
        names = stats.__dataclass_fields__
        required = {name: 0 for name, field in names.items() if field.default is not None and name not in pools}
        return stats(**required | pools | {"is_hybrid_swa": True, "is_hybrid_ssm": False, "is_hisparse": False})

    def test_decode_usage(self, usage_parts):
        text = ", ".join(usage_parts.get_decode_usage_msg_parts())
        found = find_batch(f"Decode batch, #running-req: 3, {text}, #queue-req: 1".encode())
        assert found is not None
        assert (found[1].full_usage, found[1].swa_usage, found[1].queued) == (0.48, 0.97, 1)

    def test_prefill_usage(self, usage_parts):
        text = ", ".join(usage_parts.get_prefill_usage_msg_parts())
        found = find_batch(f"Prefill batch [12], #new-seq: 2, #new-token: 70, #cached-token: 9, {text}".encode())
        assert found is not None
        assert (found[1].full_usage, found[1].swa_usage, found[1].new_requests) == (0.48, 0.97, 2)

    def test_one_pool(self, usage_parts):
        plain = replace(usage_parts, is_hybrid_swa=False)
        text = ", ".join(plain.get_decode_usage_msg_parts())
        found = find_batch(f"Decode batch, #running-req: 3, {text}".encode())
        assert found is not None
        assert (found[1].full_usage, found[1].swa_usage) == (0.48, None)

    def test_the_pool_equation(self):
        module = pytest.importorskip("sglang.srt.managers.scheduler_components.invariant_checker")
        checker = next(value for value in vars(module).values() if hasattr(value, "_check_pool_invariant"))
        _, text = checker._check_pool_invariant("swa", 752, 288, 0, 0, 1024)
        (leak,) = read(f"{stamp(1)} pool memory leak detected! {text}\n").leaks
        assert (leak.pool, leak.total, leak.missing) == ("swa", 1024, -16)


def test_a_document_of_simple_facts_is_finite():
    facts = read(decode(1, rate=0.0))
    assert SimpleNamespace(**logs_document([facts], (), 0)).clean is True


class TestWhatPeopleShorten:
    """Tracebacks and commands as they are pasted by hand."""

    WHOLE = (
        "[2026-05-14 09:12:44 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/sglang/srt/managers/scheduler.py", line 12, in run_batch\n'
        "    x = call(y)\n"
        '  File "/opt/sglang/srt/mem_cache/radix_cache.py", line 7, in evict\n'
        "    assert node.value is not None\n"
        "AssertionError: a leaf\n"
    )

    @pytest.mark.parametrize(
        ("name", "text", "frames"),
        [
            ("no numbers", re.sub(r", line \d+", "", WHOLE), ("scheduler.py:? run_batch", "radix_cache.py:? evict")),
            (
                "dots",
                WHOLE.replace("    x = call(y)\n", "  ...\n"),
                ("scheduler.py:12 run_batch", "radix_cache.py:7 evict"),
            ),
            (
                "at the margin",
                re.sub("^ +", "", WHOLE, flags=re.MULTILINE),
                ("scheduler.py:12 run_batch", "radix_cache.py:7 evict"),
            ),
        ],
    )
    def test_frames_are_still_frames(self, name, text, frames):
        (death,) = read_log(name, [text.encode()]).deaths
        assert (death.type_name, death.message, death.frames) == ("AssertionError", "a leaf", frames)

    def test_dots_are_no_statement(self):
        text = self.WHOLE.replace("    assert node.value is not None\n", "    ...\n")
        assert read_log("x", [text.encode()]).deaths[0].statement == ""

    def test_a_prefix_is_learnt_from_stamps_too(self):
        lines = [f"gpu-pod-0 sglang {line}" for line in self.WHOLE.splitlines()]
        lines = [line for line in lines if 'File "' not in line]
        lines.insert(0, "gpu-pod-0 sglang [2026-05-14 09:12:40] The server is fired up and ready to roll!")
        (death,) = read_log("x", ["\n".join(lines).encode() + b"\n"]).deaths
        assert (death.type_name, death.message) == ("AssertionError", "a leaf")

    @pytest.mark.parametrize(
        "line",
        [
            "$ python -m sglang.launch_server --model org/m --tp 2 --enable-lora --api-key hush",
            "command: sglang serve --model-path=org/m --tp-size '2' --enable-lora --api-key hush",
            "# launched: --model-path org/m --tensor-parallel-size 2 --enable-lora --api-key hush",
        ],
    )
    def test_a_command_stands_for_arguments_that_the_log_lacks(self, line):
        facts = read_log("x", [f"{line}\n{self.WHOLE}".encode()])
        assert facts.settings == {"model_path": "org/m", "tp_size": "2", "enable_lora": "True"}
        assert "hush" not in str(facts.arguments)

    def test_what_the_server_prints_itself_counts(self):
        start = "[2026-05-14 09:12:40] server_args=ServerArgs(model_path='org/n', tp_size=4)\n"
        for text in (f"sglang serve --model-path org/m\n{start}", f"{start}sglang serve --model-path org/m\n"):
            facts = read_log("x", [text.encode()])
            assert (facts.settings["model_path"], facts.settings["tp_size"]) == ("org/n", "4")

    def test_lines_of_a_start_alone_are_a_servers(self):
        facts = read_log("x", [b"[2026-05-14 09:12:40] Load weight begin. avail mem=78.56 GB\n"])
        assert facts.understood_lines == 1
        assert read_log("x", [b"hello\n"]).understood_lines == 0

    def test_what_is_torn_on_both_sides_is_a_traceback(self):
        facts = read_log("x", [b'  File "/opt/sglang/srt/layers/sampler.py", line 7, in forward\n    x = call(y)'])
        assert (facts.understood_lines, facts.deaths[0].frames) == (1, ("sampler.py:7 forward",))

    @pytest.mark.parametrize(
        "line",
        [
            "[2026-05-14 09:12:44] Initialization failed. warmup error: Traceback (most recent call last):",
            "kernel: oom_reaper: reaped process 4242 (python3), now anon-rss:0kB",
            "supervisord: sglang entered FATAL state",
        ],
    )
    def test_a_last_line_that_tells_of_an_end_is_no_healthy_log(self, line):
        start = "[2026-05-14 09:12:40] server_args=ServerArgs(model_path='org/m')\n"
        assert findings(read_log("x", [f"{start}{line}\n".encode()]))
        passed = f"{start}[2026-05-14 09:12:44] memory leak check passed\n"
        assert not findings(read_log("x", [passed.encode()]))
