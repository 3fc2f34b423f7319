"""Both window defects of the release, found by comparison with transformers alone, and gone with their fixes.

All engines share one import of SGLang; Triton's take 10 s each on an idle core.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_repro.parity.compare_tracks import Tolerances
from gemma4_repro.parity.judge import against_base, against_transformers, exit_code
from gemma4_repro.parity.runner import Options, run_sides
from gemma4_repro.parity.side import Side

# 0.5.23 has the width right: test_diff_later_release_live.py has its sides.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

WINDOW = 32
WIDTH, TRITON_DECODE = "swa-window-width", "triton-decode-window"
RIGHT = f"default,+{WIDTH},+{TRITON_DECODE}"
SIDES = (
    Side("triton", "triton", False, "default"),
    Side("triton-width-only", "triton", False, f"default,+{WIDTH}"),
    Side("triton-right", "triton", False, RIGHT),
    Side("triton-right-mtp", "triton", True, RIGHT),
    Side("trtllm", "trtllm_mha", False, "default"),
    Side("trtllm-right", "trtllm_mha", False, RIGHT),
    Side("trtllm-right-mtp", "trtllm_mha", True, RIGHT),
    Side("trtllm-bare", "trtllm_mha", False, "none"),
    Side("trtllm-bare-mtp", "trtllm_mha", True, "none"),
    Side("trtllm-fault", "trtllm_mha", True, RIGHT, ("page-past-the-end",), "off", "sm90"),
)


class Silent:
    def importing(self, sglang_version, folder): ...
    def started(self, name, title, limit_s): ...
    def waiting(self, phases, elapsed_s): ...
    def ended(self, arm): ...


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity") / "run"
    return run_sides("test", SIDES, Options("e4b", ("test",), folder, time_limit_s=300), Silent())


@pytest.fixture(scope="module")
def verdicts(run):
    return {verdict.arm.side.id: verdict for verdict in against_transformers(run, Tolerances())}


def told(verdict):
    """Return what is told of each cause: prompt, position, layer, layer type, mode, keys, fix."""
    return [
        (
            cause.prompt,
            cause.place.position,
            cause.place.layer,
            cause.layer_type,
            cause.place.mode,
            cause.window and cause.window.other.keys,
            cause.window and cause.window.fix,
        )
        for cause in verdict.causes
    ]


def first_over(verdict):
    """Return the first over the tolerance by prompt. The third never comes to the window's end."""
    return {c.prompt: c.first_over for c in verdict.comparisons if c.first_over is not None}


def test_without_fixes_both_defects_are_found_on_triton(verdicts):
    """W2 where a decode first holds W tokens (position 31), W1 where a prefill first holds W + 1 (position 32)."""
    verdict = verdicts["triton"]
    assert verdict.status == "differs"
    assert told(verdict) == [
        (0, WINDOW - 1, 0, "sliding_attention", "DECODE", WINDOW - 1, TRITON_DECODE),
        (1, WINDOW, 0, "sliding_attention", "EXTEND", WINDOW + 1, WIDTH),
    ]
    assert first_over(verdict) == {0: WINDOW - 1, 1: WINDOW}


def test_without_its_fix_the_width_is_found_on_trtllm(verdicts):
    verdict = verdicts["trtllm"]
    assert told(verdict) == [(0, WINDOW, 0, "sliding_attention", "DECODE", WINDOW + 1, WIDTH)]
    assert verdict.causes[0].prompts == (0, 1)
    assert first_over(verdict) == {0: WINDOW, 1: WINDOW}


def test_with_the_width_alone_triton_still_decodes_with_a_key_too_few(verdicts):
    """So the second fix is needed, and its absence shows; the long prompt parts at its first decode, not in prefill."""
    verdict = verdicts["triton-width-only"]
    assert {(row[4], row[5], row[6]) for row in told(verdict)} == {("DECODE", WINDOW - 1, TRITON_DECODE)}
    assert first_over(verdict) == {0: WINDOW - 1, 1: 40}


@pytest.mark.parametrize("name", ["triton-right", "triton-right-mtp", "trtllm-right", "trtllm-right-mtp"])
def test_with_both_fixes_every_backend_agrees_with_transformers(verdicts, name):
    verdict = verdicts[name]
    assert (verdict.status, verdict.causes) == ("agrees", ())
    assert [comparison.token for comparison in verdict.comparisons] == [None] * 3
    # Round-off: far below the tolerance that the verdict rests on.
    assert max(comparison.worst for comparison in verdict.comparisons) < 1e-4
    assert exit_code([verdict]) == 0


def test_with_mtp_drafts_are_accepted_and_usage_is_recorded(run):
    for name in ("triton-right-mtp", "trtllm-right-mtp"):
        arm = run.arm(name)
        assert arm.outcome.result.accept_length > 1.5
        assert 0 < arm.usage.full_peak < arm.usage.swa_peak < 1
        assert len(arm.usage.swa) == len(arm.usage.full) > 3
        assert {"EXTEND", "TARGET_VERIFY"} == {mode for track in arm.tracks for mode in track.modes}


def test_a_crash_is_an_outcome_of_its_own(verdicts):
    """What the release does with MTP and CUDA graphs off, without the fix eager-out-cache-loc."""
    verdict = verdicts["trtllm-bare-mtp"]
    assert (verdict.status, verdict.agrees) == ("crashed", None)
    assert verdict.arm.outcome.first("RuntimeError") is not None


def test_a_harmless_patch_set_passes_the_gate(run):
    (verdict,) = against_base(run, [("trtllm-bare", "trtllm")], Tolerances())
    assert (verdict.status, exit_code([verdict], [run.arm("trtllm-bare")])) == ("agrees", 0)
    # The fixes change nothing here; the kernels sum in another order.
    assert max(comparison.worst for comparison in verdict.comparisons) < 1e-4


def test_an_injected_fault_that_reads_in_silence_fails_the_gate(run):
    """sm90 does not fault on the page past the end, and no probe is on: only the logprobs show it."""
    (verdict,) = against_base(run, [("trtllm-right-mtp", "trtllm-fault")], Tolerances())
    assert verdict.completed
    assert (verdict.status, exit_code([verdict])) == ("differs", 1)
    (cause,) = verdict.causes
    assert (cause.place.mode, cause.layer_type, cause.window) == ("TARGET_VERIFY", "sliding_attention", None)


def test_a_stale_window_fails_the_gate_and_says_which_side_is_off(run):
    (verdict,) = against_base(run, [("trtllm-right", "trtllm")], Tolerances())
    assert verdict.status == "differs"
    (cause,) = verdict.causes
    assert (cause.window.reference.keys, cause.window.other.keys, cause.window.fix) == (WINDOW, WINDOW + 1, WIDTH)


def test_traces_are_removed_and_logs_stay(run):
    left = {path.name for path in (run.folder / "trtllm-right-mtp").iterdir()}
    assert left == {"dumps", "log.txt", "result.json", "usage.jsonl"}
    assert {path.name for path in run.folder.iterdir() if path.is_file()} == {"oracle.txt", "prefork.txt"}


def test_the_command_line_runs_it(tmp_path):
    command = [Path(sys.executable).with_name("gemma4-triage"), "diff", "backends", "--backend", "trtllm_mha"]
    done = subprocess.run(
        [*command, "--mtp", "on", "--patches", RIGHT, "--json", "--output", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["kind"] == "diff-backends"
    (side,) = document["sides"]
    assert (side["status"], side["against"][0]["agrees"]) == ("agrees", True)
