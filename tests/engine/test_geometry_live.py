"""The geometry probe while the real engine starts.

That a clean run leaves no dump: test_parity_with_transformers.py.
"""

import json

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.corpus.case import corrected
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

START_ONLY = {"prompts": [], "new_tokens": 1}


def environment(folder, mode, patches):
    return {
        "SGLANG_TRTLLM_MHA_DEBUG": mode,
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder),
        "GEMMA4_TRIAGE_PATCHES": patches,
    }


def findings(folder):
    """Return [(severity, verdict), ...] of the one process that had something to look at, the scheduler."""
    manifests = [json.loads(path.read_text()) for path in (folder / "guards").glob("*.json")]
    rows = [row for manifest in manifests for row in manifest["patches"] if row["id"] == "geometry"]
    (row,) = [row for row in rows if "findings" in row]
    return [(found["severity"], found["verdict"]) for found in row["findings"]]


def dumps_in(folder):
    return [read_dump(entry.path).manifest for entry in reversed(DumpStore(folder).list())]


@pytest.fixture
def hybrid_arguments(mtp_arguments):
    return mtp_arguments | {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha"}


# 0.5.14 and later have the window right.
@pytest.mark.releases("0.5.13.post1")
def test_without_its_fix_the_releases_window_is_found_on_both_sides(run_engine, mtp_arguments, tmp_path):
    run = run_engine(environment(tmp_path, "log", "default"), engines=[mtp_arguments], **START_ONLY)
    assert run.returncode == 0, run.log[-4000:]
    found = dumps_in(tmp_path)
    assert [(one.rule, one.verdict, one.role) for one in found] == [
        ("geometry", "window_width", "draft"),
        ("geometry", "window_width", "target"),
    ]
    assert {(one.scalars["found"], one.scalars["expected"]) for one in found} == {(32, "31")}
    assert [severity for severity, verdict in findings(tmp_path) if verdict == "window_width"] == ["advice", "advice"]


def test_without_the_fix_a_hybrid_draft_backend_stops_the_start(run_engine, hybrid_arguments, tmp_path):
    patches = "default,-swa-state-swap"
    run = run_engine(environment(tmp_path, "trap", patches), engines=[hybrid_arguments], **START_ONLY)
    assert run.returncode == 1
    assert "gemma4-triage: TrappedViolation: geometry: draft pool: found MHATokenToKVPool@" in run.log
    assert "This server does not start." in run.log
    assert "IndexError" not in run.log
    (found,) = dumps_in(tmp_path)
    assert (found.verdict, found.action, found.role) == ("geometry_mismatch", "trapped", "draft")
    assert "HybridAttnBackend.decode_backend" in found.scalars["found"]
    assert ("fatal", "geometry_mismatch") in findings(tmp_path)


def test_with_the_fix_a_hybrid_draft_backend_is_silent(run_engine, hybrid_arguments, tmp_path):
    patches = corrected()
    run = run_engine(environment(tmp_path, "log", patches), engines=[hybrid_arguments], **START_ONLY)
    assert run.returncode == 0, run.log[-4000:]
    assert dumps_in(tmp_path) == []
    assert {severity for severity, _ in findings(tmp_path)} <= {"note"}


@pytest.mark.parametrize(
    ("before", "summary"),
    [
        (
            "bind_draft_a_layer_before",
            "draft bound_layer, layers 3: found 3, expected 4, whose KV the target's last sliding layer reads",
        ),
        ("widen_draft_window", "draft window_left, layers 4: found 32, expected 31, as the other layers have it"),
    ],
)
def test_a_draft_layer_that_is_bound_wrongly_but_in_range_stops_the_start(
    run_engine, mtp_arguments, tmp_path, before, summary
):
    settings, spoilt = environment(tmp_path, "trap", corrected()), f"engine_changes:{before}"
    run = run_engine(settings, engines=[mtp_arguments], before=spoilt, **START_ONLY)
    assert run.returncode == 1
    (found,) = dumps_in(tmp_path)
    assert (found.summary, found.action) == (summary, "trapped")
    (incident,) = group([read_dump(entry.path) for entry in DumpStore(tmp_path).list()])
    cause = conclude(incident)[0]
    assert (cause.rule, cause.structure, cause.defect) == ("parts-disagree", "draft binding", "off by one")


# The start under which it halves a pool is that of the V1 worker for a draft with a pool of its own.
@pytest.mark.releases("0.5.13.post1")
@pytest.mark.parametrize("before", [{}, {"before": "engine_changes:halve_draft_pool"}], ids=["as-shipped", "halved"])
def test_a_draft_pool_smaller_than_the_targets_stops_the_start(run_engine, engine_arguments, tmp_path, before):
    standalone = engine_arguments | {
        "attention_backend": "triton",
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": engine_arguments["model_path"],
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    run = run_engine(environment(tmp_path, "trap", "default"), engines=[standalone], **START_ONLY, **before)
    found = dumps_in(tmp_path)
    if not before:
        assert run.returncode == 0, run.log[-4000:]
        assert found == []
        return
    assert run.returncode == 1
    assert [(one.verdict, one.role, one.scalars["found"]) for one in found] == [("pool_too_small", "draft", 1280)]
    assert found[0].scalars["expected"] == "at least 2560, which the allocator hands out"
    assert ("fatal", "pool_too_small") in findings(tmp_path)
