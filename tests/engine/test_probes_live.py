"""A planted allocator fault and a bad setting in the live engine.

The seed bug's arms are in test_repro_e4b_trtllm.py, fixes that are off in test_repro_corpus.py and test_diff_live.py, a
clean run in test_parity_with_transformers.py.
"""

import pytest

import engine_process
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.language import held_out_prompts

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]


def load(arguments):
    return {"engines": [arguments], "prompts": held_out_prompts(2, 40, seed=3), "new_tokens": 24}


def test_a_slot_beyond_the_pool_is_trapped_where_it_is_handed_out(run_engine, engine_arguments, tmp_path):
    run = run_engine(
        {
            "GEMMA4_TRIAGE_FAULTS": "swa-alloc-oob",
            "GEMMA4_TRIAGE_PATCHES": "default",
            "SGLANG_TRTLLM_MHA_DEBUG": "1",
            "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path),
        },
        **load(engine_arguments),
    )
    assert run.returncode != 0
    assert "FAULT INJECTED: swa-alloc-oob" in run.log
    assert "TrappedViolation: swa-alloc-range" in run.log
    (entry,) = DumpStore(tmp_path).list()
    found = read_dump(entry.path).manifest
    assert (found.rule, found.verdict) == ("swa-alloc-range", "alloc_out_of_range")
    assert found.guards["verified"] is True
    assert found.guards["pid"] == found.host.pid
    assert [row["injected"] for row in found.guards["patches"] if row["id"] == "swa-alloc-oob"] == [True]


def test_a_bad_setting_stops_the_engine_at_once(engine_arguments, tmp_path):
    """In a process of its own, from the start of Python to its exit code."""
    environment = engine_process.HOST | {"SGLANG_TRTLLM_MHA_DEBUG": "banana"}
    run = engine_process.run_fresh(tmp_path, environment, 180, engine_process.prompts_spec(**load(engine_arguments)))
    assert run.returncode == 2
    assert "SGLANG_TRTLLM_MHA_DEBUG='banana' cannot be read" in run.log
    assert "Traceback" not in run.log
