"""SGLang 0.5.23 against transformers: the window's width is right there, a Triton decode still sees a key too few."""

import pytest
from test_diff_live import WINDOW, Silent, told

from gemma4_repro.parity.compare_tracks import Tolerances
from gemma4_repro.parity.judge import against_base, against_transformers, exit_code
from gemma4_repro.parity.runner import Options, run_sides
from gemma4_repro.parity.side import Side, attached

# The older release has a window one too wide: test_diff_live.py has its sides.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.23")]

TRITON_DECODE = "triton-decode-window"
RIGHT = f"default,+{TRITON_DECODE}"
EXACT = "default,+vision-hf-exact"
SIDES = (
    Side("triton", "triton", False, "default"),
    Side("triton-right", "triton", False, RIGHT),
    Side("triton-right-mtp", "triton", True, RIGHT),
    Side("trtllm", "trtllm_mha", False, "default"),
    Side("trtllm-mtp", "trtllm_mha", True, "default"),
    Side("trtllm-bare", "trtllm_mha", False, "none"),
    Side("trtllm-fault", "trtllm_mha", True, "default", ("page-past-the-end",), "off", "sm90"),
    Side("trtllm-crash", "trtllm_mha", True, "default", ("page-past-the-end",), "off", "sm100"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity") / "run"
    return run_sides("test", SIDES, Options("e4b", ("test",), folder, time_limit_s=300), Silent())


@pytest.fixture(scope="module")
def verdicts(run):
    return {verdict.arm.side.id: verdict for verdict in against_transformers(run, Tolerances())}


def test_without_its_fix_a_triton_decode_is_found_and_nothing_else(verdicts):
    verdict = verdicts["triton"]
    assert verdict.status == "differs"
    assert {(row[3], row[4], row[5], row[6]) for row in told(verdict)} == {
        ("sliding_attention", "DECODE", WINDOW - 1, TRITON_DECODE)
    }


@pytest.mark.parametrize("name", ["triton-right", "triton-right-mtp", "trtllm", "trtllm-mtp"])
def test_every_other_side_agrees_with_transformers(verdicts, name):
    verdict = verdicts[name]
    assert (verdict.status, verdict.causes) == ("agrees", ())
    assert [comparison.token for comparison in verdict.comparisons] == [None] * 3
    assert max(comparison.worst for comparison in verdict.comparisons) < 1e-4


def test_with_mtp_drafts_are_accepted_and_usage_is_recorded(run):
    for name in ("triton-right-mtp", "trtllm-mtp"):
        arm = run.arm(name)
        assert arm.outcome.result.accept_length > 1.5
        assert 0 < arm.usage.full_peak < arm.usage.swa_peak < 1
        assert {"EXTEND", "TARGET_VERIFY"} == {mode for track in arm.tracks for mode in track.modes}


def test_an_injected_fault_that_reads_in_silence_fails_the_gate(run):
    (verdict,) = against_base(run, [("trtllm-mtp", "trtllm-fault")], Tolerances())
    assert (verdict.status, exit_code([verdict])) == ("differs", 1)


def test_a_crash_is_an_outcome_of_its_own(verdicts):
    """The same fault on a device that faults on the page."""
    verdict = verdicts["trtllm-crash"]
    assert (verdict.status, verdict.agrees) == ("crashed", None)
    assert verdict.arm.outcome.first("IllegalAddress") is not None


def test_a_harmless_patch_set_passes_the_gate(run):
    (verdict,) = against_base(run, [("trtllm-bare", "trtllm")], Tolerances())
    assert (verdict.status, exit_code([verdict], [run.arm("trtllm-bare")])) == ("agrees", 0)


def test_a_stale_window_fails_the_gate_and_says_which_side_is_off(run):
    (verdict,) = against_base(run, [("triton-right", "triton")], Tolerances())
    assert verdict.status == "differs"
    (cause,) = verdict.causes
    assert (cause.window.reference.keys, cause.window.other.keys, cause.window.fix) == (
        WINDOW,
        WINDOW - 1,
        TRITON_DECODE,
    )


def test_traces_are_removed_and_logs_stay(run):
    left = {path.name for path in (run.folder / "trtllm-mtp").iterdir()}
    assert left == {"dumps", "log.txt", "result.json", "usage.jsonl"}
    assert {path.name for path in run.folder.iterdir() if path.is_file()} == {"oracle.txt", "prefork.txt"}


def test_a_side_names_what_is_attached_there():
    assert attached(RIGHT) == ("swa-state-swap", TRITON_DECODE)


def test_pictures_are_those_of_transformers_with_the_exact_tower_alone(tmp_path):
    sides = (
        Side("shipped", "trtllm_mha", False, "default"),
        Side("exact", "trtllm_mha", False, EXACT),
        Side("exact-mtp", "trtllm_mha", True, EXACT),
    )
    run = run_sides("test", sides, Options("pictures", ("test",), tmp_path / "run", time_limit_s=300), Silent())
    # Logits of pictures' rows are larger than of text, and so is their round-off.
    found = {one.arm.side.id: one for one in against_transformers(run, Tolerances(1e-3, 1e-3))}
    assert {name: one.status for name, one in found.items()} == {
        "shipped": "differs",
        "exact": "agrees",
        "exact-mtp": "agrees",
    }
    assert max(comparison.worst for comparison in found["shipped"].comparisons) > 1
