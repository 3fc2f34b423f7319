"""A live engine that dies in SGLang's own indexing, before a page table is checked, leaves a dump of that exception."""

import json

import pytest

from engine_process import prompts_spec
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.language import held_out_prompts

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]


ENVIRONMENT = {
    "GEMMA4_TRIAGE_PATCHES": "default",
    "SGLANG_TRTLLM_MHA_DEBUG": "contain",
    "GEMMA4_TRIAGE_PROBES": "page-table,process-end",
}


def load(engine, change):
    prompts = held_out_prompts(2, 40, seed=3)
    return prompts_spec([engine], prompts, before=f"engine_changes:{change}", new_tokens=40)


def test_a_batch_without_lengths_ends_the_scheduler_with_a_dump(engine_forks, mtp_arguments, tmp_path):
    ended = engine_forks.run(tmp_path, ENVIRONMENT, 120, load(mtp_arguments, "lose_lengths"))
    assert ended.returncode != 0
    dumps = [read_dump(entry.path) for entry in DumpStore(tmp_path / "dumps").list()]
    (dump,) = [dump for dump in dumps if dump.manifest.verdict == "exception"]
    assert dump.manifest.scalars["requests"] == 2
    assert dump.tensor("requests").min() >= 0
    assert dump.manifest.site.startswith("sglang."), dump.manifest.summary
    marks = [json.loads(path.read_text())["ended"] for path in (tmp_path / "dumps" / "guards").glob("*.json")]
    assert "exception" in {mark["how"] for mark in marks if mark}


# 0.5.23 follows such a slot without dying, and page-table contains it.
@pytest.mark.releases("0.5.13.post1")
def test_a_crash_before_every_check_is_a_dump_and_a_finding(engine_forks, mtp_arguments, tmp_path, cli):
    ended = engine_forks.run(tmp_path, ENVIRONMENT, 120, load(mtp_arguments, "overwrite_row"))
    assert ended.returncode != 0
    (entry,) = DumpStore(tmp_path / "dumps").list()
    dump = read_dump(entry.path)
    assert dump.manifest.verdict == "exception", dump.manifest.summary
    assert dump.tensor("req_to_token").max() == 1 << 20
    assert dump.manifest.scalars["stage"] == "run_batch"
    marks = [json.loads(path.read_text())["ended"] for path in (tmp_path / "dumps" / "guards").glob("*.json")]
    assert "exception" in {mark["how"] for mark in marks if mark}
    code, out, _ = cli("diagnose", "--dir", tmp_path / "dumps", "--json")
    found = json.loads(out)["incidents"][0]["findings"][0]
    assert (code, found["rule"], found["confidence"]) == (1, "slot-beyond-the-map", "likely")
