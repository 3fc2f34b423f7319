"""`gemma4-triage profile`: output, document, exit codes, memory."""

import io
import json
import subprocess
import sys

import pytest

import trace_examples as ex
from gemma4_triage.cli.profile import METHODS
from gemma4_triage.step_profile import anchors, trace_tables
from trace_examples import TraceMaker, decode, e4b, moe, write


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "e4b.trace.json.gz", decode(e4b(6)).document())


def test_what_a_person_sees(cli, trace):
    code, out, err = cli("profile", trace)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == str(trace)
    assert "launches on a GPU: NVIDIA H200" in lines[1]
    assert "  steps        5, by launches of one CUDA graph, step[DECODE bs=8]" in lines
    assert "layers       6; 23.8 launches per layer of step[DECODE bs=8]" in out
    (row,) = [line.split() for line in lines if line.startswith("attention")]
    assert row[1:4] == ["18.0", "4.1%", "6.0"]
    (row,) = [line.split() for line in lines if line.startswith("all ")]
    assert row[1:] == [f"{3 * (len(e4b(6)) + 3):.1f}", "100.0%", f"{len(e4b(6)) + 3:.1f}"]
    (row,) = [line.split() for line in lines if line.startswith("rmsnorm_add")]
    assert row[1:4] == ["6", "12", "36.0"]
    assert lines[-1].endswith("76 launches of 228.0 us per step")


def test_the_document(cli, trace):
    code, out, err = cli("profile", trace, "--json", "--layers", "3")
    document = json.loads(out)
    assert (code, err, document["kind"]) == (0, "", "profile")
    assert document["device_names"] == ["NVIDIA H200"]
    counts = document["events"]
    assert counts["total"] == sum(counts[kind] for kind in counts if kind != "total")
    (device,) = document["devices"]
    assert device["steps"]["method"] == "graph"
    assert device["steps"]["count"] == len(device["steps"]["each"]) == 5
    assert device["layers"]["launches_per_layer"] == device["layers"]["launches"] / 3
    assert sum(family["share"] for family in device["families"]) == pytest.approx(1)
    assert {use["op"]: use["matches"] for use in device["replaceable"]}["gelu_tanh_mul"] == 6


@pytest.mark.parametrize(
    ("said", "shown"), [({"size": "e4b"}, {"size": "e4b"}), ({"a": float("nan")}, None), ([1], None)]
)
def test_what_its_recorder_says_is_shown_if_it_can_be(cli, tmp_path, said, shown):
    document = decode(e4b(2)).document() | {"gemma4_triage": said, "deviceProperties": [7, {"name": None}]}
    code, out, _ = cli("profile", write(tmp_path / "t.json", document), "--json")
    assert code == 0
    assert (json.loads(out)["recorded"], json.loads(out)["device_names"]) == (shown, [])


def test_two_devices_and_odd_names(cli, tmp_path):
    first, second = decode(e4b(2)), decode([*moe(2), "\x1b[31mred[bold]"], device=1)
    document = first.document()
    document["traceEvents"] += second.document(noise=False)["traceEvents"]
    code, out, _ = cli("profile", write(tmp_path / "two.json", document))
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("GPU ")] == ["GPU 0", "GPU 1"]
    assert "\x1b" not in out
    assert "\\x1b[31mred[bold]" in out


def test_what_has_no_usable_time_is_said(cli, tmp_path):
    document = decode(e4b(2)).document()
    document["traceEvents"].append({"cat": "kernel", "ph": "X", "name": "k", "ts": "soon", "dur": 1})
    assert "1 events of a GPU have no usable time" in cli("profile", write(tmp_path / "t.json", document))[1]


def test_stdin(cli, trace, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(trace.read_bytes()))))
    code, out, _ = cli("profile", "-")
    assert code == 0
    assert out.startswith("-\n")


class TestExitCodes:
    def test_nothing_ran_on_a_gpu(self, cli, tmp_path):
        document = decode(e4b(2)).document()
        document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") != "kernel"]
        document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") != "gpu_memcpy"]
        code, out, err = cli("profile", write(tmp_path / "cpu.json", document), "--json")
        assert code == 5
        assert json.loads(out)["exit_code"] == 5
        assert "nothing in" in err
        assert 'activities ["CPU", "GPU"]' in err

    @pytest.mark.parametrize("text", ["", "not json", '{"a": 1}', "[1, 2", '{"traceEvents": [{]}'])
    def test_no_trace(self, cli, tmp_path, text):
        (tmp_path / "t.json").write_text(text)
        code, out, err = cli("profile", tmp_path / "t.json")
        assert (code, out) == (4, "")
        assert "hint:" in err

    def test_a_torn_gzip(self, cli, trace):
        trace.write_bytes(trace.read_bytes()[:-20])
        code, _, err = cli("profile", trace)
        assert code == 4
        assert "is torn" in err

    @pytest.mark.parametrize(
        "words", [["nowhere.json"], ["."], ["{trace}", "--layers", "0"], ["{trace}", "--steps", "guess"], []]
    )
    def test_usage(self, cli, trace, words):
        assert cli("profile", *(word.replace("{trace}", str(trace)) for word in words))[0] == 2

    def test_more_launches_than_fit(self, cli, trace, monkeypatch):
        monkeypatch.setattr(trace_tables, "MAX_GPU_EVENTS", 100)
        code, _, err = cli("profile", trace)
        assert code == 3
        assert "more than 100 launches on GPUs" in err


def test_the_methods_of_the_option_are_those_there_are():
    assert METHODS == anchors.METHODS


_MEASURE = """
import re, sys
from gemma4_triage.cli.app import main
code = main(["profile", "-", "--json"])
# Not ru_maxrss, which remembers the process that this one was forked from.
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_passed_over():
    """80 MB of stacks and operators beside 3000 launches: far below what the document itself would take."""
    maker = TraceMaker()
    for _ in range(6):
        maker.graph([ex.GEMM] * 500)
    stack = {"ph": "X", "cat": "python_function", "name": "f" * 150, "pid": 1, "tid": 1, "ts": 1.5, "dur": 2.5}
    noise = json.dumps(stack | {"args": {"Python id": 1, "Python parent id": None}}).encode() + b","
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"[")
        for _ in range(80):
            process.stdin.write(noise * (10**6 // len(noise)))
        process.stdin.write(json.dumps(maker.events).encode()[1:])
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["events"]["gpu"] == 3000
    assert int(err.split()[-1]) < 250
