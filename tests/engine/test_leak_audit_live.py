"""The leak audit in the live engine: silent on a mixed load with an abort, and a planted leak does what was asked."""

import json
import re

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.language import held_out_prompts
from lifecycle import load_of

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

LIMIT_S = 180


@pytest.fixture
def run(mtp_arguments, engine_forks, tmp_path):
    """Return a function: ("dump", plant=True) to (exit code, what was served, log, dumps, the scheduler's tally)."""

    def start(leak, plant):
        lengths = (60, 17, 33, 60, 5, 48)
        prompts = [prompt[:n] for prompt, n in zip(held_out_prompts(len(lengths), 60, 5), lengths, strict=True)]
        prompts[3] = prompts[0][:50] + prompts[3][50:]
        environment = {
            "GEMMA4_TRIAGE_PATCHES": "default",
            "GEMMA4_TRIAGE_LEAK": leak,
            "GEMMA4_TRIAGE_LEAK_EVERY": "1",
        }
        requests = [request(prompt, 5 + 9 * (number % 4)) for number, prompt in enumerate(prompts)]
        # The longest is aborted once the others have ended.
        requests.append(request(prompts[0], 300) | {"abort": 45})
        arm = {
            "engine": mtp_arguments,
            # Served twice, so that a server that goes on after it was idle can be told from one that ends.
            "loads": [load_of(requests, idle_s=1)] * 2,
        }
        spec = {"before": ["engine_changes:plant_leak"] if plant else [], "arms": [arm]}
        ended = engine_forks.run(tmp_path, environment, LIMIT_S, spec)
        tallies = [json.loads(path.read_text()) for path in (tmp_path / "dumps" / "audits").glob("*.json")]
        dumps = [read_dump(entry.path) for entry in DumpStore(tmp_path / "dumps").list()]
        served = ended.outputs[0]["loads"] if ended.outputs else []
        return ended.returncode, served, ended.log, dumps, max(tallies, key=events)

    return start


def request(prompt, new_tokens):
    return {"prompt": prompt, "sampling": {"temperature": 0, "ignore_eos": True, "max_new_tokens": new_tokens}}


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
