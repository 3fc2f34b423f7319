"""The leak audit in the live engine: silent on a mixed load with an abort, and a planted leak does what was asked."""

import json
import re

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.language import held_out_prompts

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

LIMIT_S = 180


@pytest.fixture
def run(mtp_arguments, engine_forks, tmp_path):
    """run("dump", plant=True) -> (exit code, what was served, log, dumps, the scheduler's tally)."""

    def start(leak, plant):
        lengths = (60, 17, 33, 60, 5, 48)
        prompts = [prompt[:n] for prompt, n in zip(held_out_prompts(len(lengths), 60, 5), lengths, strict=True)]
        prompts[3] = prompts[0][:50] + prompts[3][50:]
        environment = {
            "GEMMA4_TRIAGE_PATCHES": "default",
            "GEMMA4_TRIAGE_LEAK": leak,
            "GEMMA4_TRIAGE_LEAK_EVERY": "1",
        }
        spec = {"engine": mtp_arguments, "prompts": prompts, "plant": plant}
        ended = engine_forks.run_child("leak_child", tmp_path, environment, LIMIT_S, spec)
        tallies = [json.loads(path.read_text()) for path in (tmp_path / "dumps" / "audits").glob("*.json")]
        dumps = [read_dump(entry.path) for entry in DumpStore(tmp_path / "dumps").list()]
        return ended.returncode, ended.outputs or [], ended.log, dumps, max(tallies, key=events)

    return start


def events(tally):
    return tally["events"]


def test_a_clean_mixed_load_is_audited_and_leaves_no_dump(run):
    code, served, log, dumps, tally = run("raise", plant=False)
    assert code == 0, log[-4000:]
    assert len(served) == 2
    assert dumps == []
    assert tally["audits"]["idle"] >= 2
    assert tally["audits"]["scheduler step"] >= 10
    assert tally["balanced"] is True
    assert tally["cannot"] is None


def test_with_dump_a_leak_is_named_and_the_server_goes_on(run):
    code, served, log, dumps, tally = run("dump", plant=True)
    assert code == 0, log[-4000:]
    assert len(served) == 2, "it should have served again after the leak"
    assert {dump.manifest.verdict for dump in dumps} == {"pool_leak"}
    summary = dumps[-1].manifest.summary
    assert "belong to nobody and are not free; last owner request slot" in summary
    assert re.search(r"handed out by (alloc_for_extend|prepare_for_verify|spec_v2_decode) at step \d+", summary)
    assert "missing" in summary
    assert "SGLang would stop here, and the leak audit has explained it: pool memory leak detected!" in log
    assert tally["let_pass"]["_report_leak"] >= 1
    assert set(tally["let_pass"]) == {"_report_leak"}


def test_with_raise_the_process_ends_with_the_audits_own_exception(run):
    code, served, log, dumps, _ = run("raise", plant=True)
    assert code != 0
    assert len(served) < 2
    assert "TrappedViolation: leak-audit" in log
    assert "ValueError: pool memory leak detected" not in log
    assert {dump.manifest.action for dump in dumps} == {"trapped"}
