"""The trace recorder, as far as it goes without a GPU: what it keeps of a trace, what it is started with."""

import gzip
import json

import pytest
import torch

from gemma4_repro.bench import record_trace
from gemma4_repro.bench.server_arguments import command_words, cuda_arguments
from gemma4_repro.bench.server_environment import server_environment
from gemma4_repro.bench.trim_trace import NotATrace, trim, write_trace
from gemma4_triage.step_profile.analyse import analyse
from gemma4_triage.step_profile.trace_tables import read_tables
from trace_examples import decode, e4b, write

RECORDED = {"size": "e4b"}


def said(document) -> list[str]:
    return [repr(profile) for profile in analyse(read_tables(document["traceEvents"]))]


class TestTrim:
    def test_what_is_said_of_a_trace_stays(self):
        document = decode(e4b(6)).document()
        trimmed = trim(document, RECORDED)
        assert said(trimmed) == said(document)
        assert trimmed["gemma4_triage"] == RECORDED

    def test_what_it_says_nothing_of_goes(self):
        text = json.dumps(trim(decode(e4b(6)).document(), RECORDED))
        assert not any(word in text for word in ("python_function", "cpu_op", "ac2g", "/somewhere", "totalGlobalMem"))
        assert "External id" not in text

    def test_twice_is_once(self):
        once = trim(decode(e4b(3)).document(), RECORDED)
        assert trim(once, RECORDED) == once

    def test_five_steps_of_e4b_make_a_sample(self, tmp_path):
        size = write_trace(trim(decode(e4b(42)).document(), RECORDED), tmp_path / "t.json.gz")
        assert size == (tmp_path / "t.json.gz").stat().st_size < record_trace.SAMPLE_BYTES

    def test_equal_traces_give_equal_files(self, tmp_path):
        document = trim(decode(e4b(3)).document(), RECORDED)
        for name in ("a.json.gz", "b.json.gz"):
            write_trace(document, tmp_path / name)
        assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz"]

    @pytest.mark.parametrize("document", [[], {}, {"traceEvents": 7}, {"traceEvents": []}])
    def test_no_trace(self, document):
        with pytest.raises(NotATrace):
            trim(document, RECORDED)

    def test_torchs_own_trace_without_a_gpu(self, tmp_path):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
            torch.ones(8) @ torch.ones(8)
        profiler.export_chrome_trace(str(tmp_path / "cpu.json.gz"))
        document = json.loads(gzip.decompress((tmp_path / "cpu.json.gz").read_bytes()))
        with pytest.raises(NotATrace, match=r"none of the \d+ events"):
            trim(document, RECORDED)


class TestArms:
    def test_none_does_not_load_the_plugin(self, tmp_path):
        found = server_environment(record_trace._arm("none"), tmp_path, False, {})
        assert found["SGLANG_PLUGINS"] == "no-plugin"
        assert "GEMMA4_TRIAGE_PATCHES" not in found

    def test_patches_are_asked_for_by_name(self, tmp_path):
        found = server_environment(record_trace._arm("default"), tmp_path, False, {"GEMMA4_TRIAGE_FAULTS": "x"})
        assert found["GEMMA4_TRIAGE_PATCHES"] == "default"
        assert not found.keys() & {"SGLANG_PLUGINS", "GEMMA4_TRIAGE_FAULTS"}

    @pytest.mark.parametrize("attention", record_trace.ATTENTION)
    def test_attention(self, attention, tmp_path):
        pair = (tmp_path / "target", tmp_path / "assistant")
        words = command_words(cuda_arguments(pair, True, (8,)) | record_trace.ATTENTION[attention])
        given = {words[place + 1] for place, word in enumerate(words) if word.endswith("attention-backend")}
        assert given == ({"triton"} if attention == "triton" else {"triton", "trtllm_mha"})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--out", "t.json"], "has to end in .json.gz"),
        (["--out", "nowhere/t.json.gz"], "folder does not exist"),
        (["--out", "there.json.gz"], "--force overwrites it"),
        (["--out", "folder.json.gz", "--force"], "a folder"),
        (["--arm", "", "--out", "t.json.gz"], "--arm is empty"),
        (["--arm", "mtp-v3", "--out", "t.json.gz"], "mtp-v3, which this version does not have"),
        (["--out", "t.json.gz", "--size", "huge"], "invalid choice"),
        (["--out", "t.json.gz", "--batch", "0"], "no number from 1 up"),
        (["--out", "t.json.gz", "--attention", "flash"], "invalid choice"),
        (["--arm", "none", "--arm", "default", "--out", "t.json.gz"], "2 --arm and 1 --out"),
        (["--arm", "none", "--out", "t.json.gz", "--out", "u.json.gz"], "1 --arm and 2 --out"),
        (["--arm", "none", "--arm", "none", "--out", "t.json.gz", "--out", "u.json.gz"], "each arm once"),
        (["--arm", "none", "--arm", "default", "--out", "t.json.gz", "--out", "t.json.gz"], "a path of its own"),
        ([], "--out"),
    ],
)
def test_usage(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "there.json.gz", {})
    (tmp_path / "folder.json.gz").mkdir()
    with pytest.raises(SystemExit) as end:
        record_trace.main(words)
    assert end.value.code == 2
    assert why in capsys.readouterr().err
