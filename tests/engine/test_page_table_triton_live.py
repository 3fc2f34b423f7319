"""The page-table probe on Triton attention in the live engine. The interpreter takes seconds per step: few tokens."""

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.corpus.case import corrected
from gemma4_repro.toys.language import held_out_prompts

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

TRITON = {"attention_backend": "triton", "max_total_tokens": 1024, "max_running_requests": 4}


def test_a_clean_run_past_the_window_with_a_top_2_draft_leaves_no_dump(run_engine, mtp_arguments, tmp_path):
    environment = {
        "GEMMA4_TRIAGE_PATCHES": corrected(),
        "SGLANG_TRTLLM_MHA_DEBUG": "log",
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path),
    }
    engine = mtp_arguments | TRITON | {"speculative_eagle_topk": 2}
    # The toy's window is 32.
    run = run_engine(environment, engines=[engine], prompts=held_out_prompts(2, 40, seed=3), new_tokens=4)
    assert run.returncode == 0, run.log[-4000:]
    assert DumpStore(tmp_path).list() == []
    assert list((tmp_path / "guards").glob("*.json"))


def test_a_slot_beyond_the_pool_is_trapped_in_the_window_list(run_engine, engine_arguments, tmp_path):
    environment = {
        "GEMMA4_TRIAGE_FAULTS": "swa-alloc-oob",
        "GEMMA4_TRIAGE_PATCHES": "default",
        # Without the probe that would trap at the hand-out.
        "GEMMA4_TRIAGE_PROBES": "page-table",
        "SGLANG_TRTLLM_MHA_DEBUG": "trap",
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path),
    }
    engine = engine_arguments | TRITON
    run = run_engine(environment, engines=[engine], prompts=held_out_prompts(1, 20, seed=3), new_tokens=11)
    assert run.returncode != 0
    assert "TrappedViolation: page-table-bounds" in run.log
    (entry,) = DumpStore(tmp_path).list()
    found = read_dump(entry.path).manifest
    assert (found.rule, found.verdict, found.backend) == ("page-table-bounds", "out_of_range", "triton")
    assert (found.offences[0].table, found.pool_kind, found.layer.type) == ("window_kv_indices", "swa", "sliding")
