"""What `diff backends` and `diff patches` print and return, for runs that never ran."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.store import DumpStore
from gemma4_repro.engine import readiness
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.parity.load import text_load
from gemma4_repro.recorders.usage import Step, Usage
from gemma4_triage.cli import diff_live
from parity_examples import WINDOW, arm, changed, live_run, oracle, side, track


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Have the command report these arms instead of running. Returns the sides that it would have run."""
    asked = []

    def make(*arms, said=None):
        def run(kind, sides, options):
            asked.append((kind, sides, options))
            asking = {"compared": options.compared, "prompt_logprobs": options.prompt_logprobs}
            above = text_load(options.load_name).swa_above
            made = live_run(tmp_path, *arms, said=said, **asking)
            return replace(made, scenario=options.scenario, load_name=options.load_name, swa_above=above)

        monkeypatch.setattr(diff_live, "_run", run)
        return asked

    return make


def wide(keys=WINDOW + 1, row=5):
    said = oracle()
    return changed(said.tracks[0], row, logprob=0.25, states=said.varied[0][keys][row]), said


def test_agreement_is_0_in_one_table(cli, finished, tmp_path):
    asked = finished(
        arm(tmp_path, track()), arm(tmp_path, track(), column=side("trtllm_mha-mtp-off", backend="trtllm_mha"))
    )
    code, out, err = cli("diff", "backends", "--mtp", "off")
    assert code == 0
    assert "triton, MTP off" in out
    assert "trtllm_mha, MTP off" in out
    assert "all equal to HF's" in out
    assert "peak 50%" in out
    assert out.count("agrees") == 2
    assert "Wrote" in err
    ((kind, sides, options),) = asked
    assert kind == "diff-backends"
    assert [(s.id, s.backend, s.mtp, s.patches, s.probes) for s in sides] == [
        ("triton-mtp-off", "triton", False, "default", "log"),
        ("trtllm_mha-mtp-off", "trtllm_mha", False, "default", "log"),
    ]
    assert options.scenario == "e4b"


def test_a_window_is_named_with_its_evidence_and_its_fix(cli, finished, tmp_path):
    other, said = wide()
    finished(arm(tmp_path, other), said=said)
    code, out, _ = cli("diff", "backends", "--backend", "triton", "--mtp", "off")
    assert code == 1
    assert "prompt 0, position 5 (decode), layer 0 (sliding) is the first that differs from transformers" in out
    assert "saw 5 keys where the window holds 4" in out
    assert "Fix: swa-window-width." in out
    code, out, _ = cli("diff", "backends", "--backend", "triton", "--mtp", "off", "--json")
    document = json.loads(out)
    assert (code, document["kind"], document["exit_code"], document["fixes"]) == (
        1,
        "diff-backends",
        1,
        ["swa-window-width"],
    )
    (against,) = document["sides"][0]["against"]
    (cause,) = against["causes"]
    assert (cause["position"], cause["layer"], cause["layer_type"], cause["phase"]) == (
        5,
        0,
        "sliding_attention",
        "decode",
    )
    assert cause["window"]["keys"] == 5
    assert json.loads((tmp_path / "verdict.json").read_text())["sides"] == document["sides"]


def test_where_the_width_shows_first_is_said(cli, finished, tmp_path):
    """A window of 5 instead of 4 shows with 5 tokens, one of 3 with 4; later it is not the first sign."""
    for keys, row, first in ((5, 4, True), (5, 6, False), (3, 3, True), (3, 4, False)):
        other, said = wide(keys, row)
        finished(arm(tmp_path, other), said=said)
        _, out, _ = cli("diff", "backends", "--backend", "triton", "--mtp", "off")
        assert ("It begins where it must" in out) is first


def test_a_near_tie_is_shown_with_both_tokens_and_logprobs(cli, finished, tmp_path):
    base = track()
    row = 6
    second = int(base.logprobs[row].argsort()[-2])
    base.logprobs[row, second] = base.logprobs[row].max() - 1e-5
    finished(arm(tmp_path, changed(base, row, token=second)), said=oracle(base))
    code, out, _ = cli("diff", "backends", "--backend", "triton", "--mtp", "off")
    assert code == 0
    assert f"says {base.tokens[row + 1]} (logprob {base.logprobs[row].max():.6f})" in out
    assert "a near-tie" in out
    code, out, _ = cli("diff", "backends", "--backend", "triton", "--mtp", "off", "--tolerance", "1e-6")
    assert code == 1
    assert "no near-tie" in out


def test_numbers_that_json_does_not_have_are_null(cli, finished, tmp_path):
    other = changed(track(), 4, logprob=np.nan, states=np.full((2, 3), np.nan))
    finished(arm(tmp_path, other))
    code, out, _ = cli("diff", "backends", "--json")
    (against,) = json.loads(out)["sides"][0]["against"]
    assert code == 1
    assert against["prompts"][0]["logprob_difference"] is None
    assert against["causes"][0]["state_difference"] is None
    assert cli("diff", "backends")[0] == 1


def test_a_crash_shows_its_error_its_log_and_the_fixes_that_were_off(cli, finished, tmp_path):
    raised = [("RuntimeError", "The size of tensor a (29) must match")]
    finished(arm(tmp_path, column=side(patches="none"), ending=Ending.CRASHED, raised=raised))
    code, out, _ = cli("diff", "backends", "--patches", "none")
    assert code == 1
    assert "crashed: RuntimeError" in out
    assert "The size of tensor a (29) must match" in out
    assert "that were off here: swa-state-swap" in out
    code, out, _ = cli("diff", "backends", "--patches", "none", "--json")
    assert json.loads(out)["sides"][0]["raised"][0]["type"] == "RuntimeError"


def test_a_dump_is_named(cli, finished, tmp_path):
    store = DumpStore(tmp_path / "dumps")
    store.write(seed_bug_draft())
    finished(arm(tmp_path, track(), dumps=store.list()))
    code, out, _ = cli("diff", "backends")
    assert code == 1
    assert "1 dump: page-table-bounds" in out
    assert f"gemma4-triage dumps show {store.list()[0].path}" in out


RESOLVES = "trtllm.resolve_swa_pool"
UNDER_PRESSURE = ("diff", "backends", "--load", "pressure", "--mtp", "on")
WITH_FAULT = (*UNDER_PRESSURE, "--fault", "swa-state-stale")


def full_pools(one, swa=0.94, step=None, finished=()):
    return replace(one, usage=Usage((0.2, 0.4), (0.5, swa), step, finished))


def contrast(tmp_path, swa=0.94):
    """Triton comes to its end; trtllm_mha dies in step 9, after prompt 0 was answered, and leaves a dump."""
    store = DumpStore(tmp_path / "dumps")
    store.write(seed_bug_draft())
    dumps = store.list()
    step = Step(9, dumps[0].manifest.created_utc.timestamp() - 1, "DECODE", {3: 9, 4: 2}, False, "IllegalAddress")
    said = track()
    done = replace(said, logprobs=np.full(said.logprobs.shape, np.nan), asked_from=len(said.tokens) - 1)
    dead = arm(
        tmp_path,
        column=side("trtllm_mha-mtp-on", backend="trtllm_mha", mtp=True, faults=("swa-state-stale",)),
        ending=Ending.CRASHED,
        raised=[("IllegalAddress", "page 70 of 65")],
        dumps=dumps,
        reached=(RESOLVES,),
    )
    dead = replace(full_pools(dead, swa, step, (0,)), finished=(done,))
    alive = arm(tmp_path, said, column=side("triton-mtp-on", mtp=True, faults=("swa-state-stale",)))
    return full_pools(alive), dead


# Its sides differ in yoco or a window fix, which 0.5.23 lacks or has itself.
@pytest.mark.releases("0.5.13.post1")
def test_one_table_tells_who_dies_under_pressure_and_who_does_not(cli, finished, tmp_path):
    arms = contrast(tmp_path)
    asked = finished(*arms)
    code, out, _ = cli(*WITH_FAULT)
    assert code == 1
    assert "trtllm_mha-mtp-on (94%) dies; triton-mtp-on (94%) lives (load pressure, 1 request" in out
    assert (
        "trtllm_mha-mtp-on: died of IllegalAddress (page 70 of 65), in step 9 (decode of prompts 3, 4), when 1 of 1 "
        "request had been answered, as transformers answers them; in use: SWA pool 94%, full pool 40%; bad pages are "
        f"listed in the rows of prompts 3; dump of that step: {arms[1].dumps[0].dump_id}."
    ) in out
    assert "Left out of the default patches, because they repair swa-state-stale: swa-state-swap." in out
    assert "Added to the default patches" in out
    assert "Never came to what swa-state-stale changes: triton-mtp-on." in out
    ((_, sides, options),) = asked
    chosen = "default,+swa-window-width,+triton-decode-window,-swa-state-swap"
    assert {(one.patches, one.faults) for one in sides} == {(chosen, ("swa-state-stale",))}
    assert (options.load_name, options.compared, options.watched) == ("pressure", ("swa-state-stale",), (RESOLVES,))


def test_the_document_has_the_death_and_the_pools(cli, finished, tmp_path):
    arms = contrast(tmp_path)
    finished(*arms)
    _, out, _ = cli(*WITH_FAULT, "--json")
    document = json.loads(out)
    assert document["load"] == {"name": "pressure", "requests": 1, "swa_peak_above": 0.85}
    assert (document["fixes_left_out"], document["summary"][0][:34]) == (
        ["swa-state-swap"],
        "trtllm_mha-mtp-on (94%) dies; trit",
    )
    alive, dead = document["sides"]
    assert (alive["died"], alive["usage"]["swa_peak"]) == (None, 0.94)
    assert dead["died"] == {
        "type": "IllegalAddress",
        "message": "page 70 of 65",
        "step": 9,
        "phase": "decode",
        "between_steps": False,
        "prompts_in_step": [3, 4],
        "prompts_at_fault": [3],
        "requests_finished": 1,
        "finished_agree_with_transformers": True,
        "full": 0.4,
        "swa": 0.94,
        "dumps": [arms[1].dumps[0].dump_id],
        "answers_compared": 1,
    }
    (fault,) = document["patches_compared"]
    assert (fault["id"], fault["exercised"], fault["sides"]) == ("swa-state-stale", True, ["trtllm_mha-mtp-on"])


def test_a_patch_set_that_is_named_is_taken_as_it_is(cli, finished, tmp_path):
    asked = finished(*contrast(tmp_path))
    _, out, _ = cli(*WITH_FAULT, "--patches", "default")
    assert {one.patches for one in asked[0][1]} == {"default"}
    assert "of the default patches" not in out


def test_a_load_that_left_the_pool_half_empty_shows_no_pressure(cli, finished, tmp_path):
    finished(full_pools(arm(tmp_path, track()), swa=0.85))
    code, out, err = cli(*UNDER_PRESSURE)
    assert code == 5
    assert "NOT under pressure, which begins above 85% of the SWA pool: triton-mtp-off (85%)." in out
    assert "did not fill the SWA pool" in err
    finished(full_pools(arm(tmp_path, track()), swa=0.86))
    code, out, _ = cli(*UNDER_PRESSURE)
    assert code == 0
    assert "Every side answers all requests (load pressure, 1 request): triton-mtp-off (86%)" in out


def test_a_fault_that_no_side_came_to_is_said(cli, finished, tmp_path):
    column = side(faults=("swa-state-stale",))
    finished(full_pools(arm(tmp_path, track(), column=column)))
    code, out, err = cli(*WITH_FAULT)
    assert code == 5
    assert "NOT exercised: swa-state-stale (no run came to what it changes)." in out
    assert "no side came to what the injected fault changes" in err


def test_cells_of_many_prompts_are_cut(cli, finished, tmp_path):
    said = oracle(*(track(prompt) for prompt in range(9)))
    finished(arm(tmp_path, *(changed(one, 5, logprob=0.25) for one in said.tracks)), said=said)
    code, out, _ = cli("diff", "backends", "--backend", "triton", "--mtp", "off")
    words = " ".join(out.split())
    assert code == 1
    assert "prompt 0, position 5; prompt 1, position 5; prompt 2, position 5; and 6 more" in words


def pair(tmp_path, base, other, paths=None, reached=("gemma4.attention_init",), of_base="default", **changes):
    """paths, reached: of the second."""
    changes.setdefault("patches", "default,+swa-window-width")
    return (
        arm(tmp_path, *base, column=side("base-triton-mtp-off", patches=of_base)),
        arm(tmp_path, *other, column=side("with-triton-mtp-off", **changes), paths=paths, reached=reached),
    )


PATCHES = ("diff", "patches", "--with", "default,+swa-window-width", "--backend", "triton", "--mtp", "off")


# Its sides differ in yoco or a window fix, which 0.5.23 lacks or has itself.
@pytest.mark.releases("0.5.13.post1")
def test_the_gate_holds_patch_sets_against_each_other(cli, finished, tmp_path):
    other, said = wide()
    asked = finished(*pair(tmp_path, [other], [other]), said=said)
    code, out, _ = cli(*PATCHES, "--fault", "stale-mapping")
    assert code == 0
    assert "all equal to base's" in out
    assert "against HF" in out
    ((_, sides, _),) = asked
    assert [(s.id, s.patches, s.faults) for s in sides] == [
        ("base-triton-mtp-off", "default", ()),
        ("with-triton-mtp-off", "default,+swa-window-width", ("stale-mapping",)),
    ]


# Its sides differ in yoco or a window fix, which 0.5.23 lacks or has itself.
@pytest.mark.releases("0.5.13.post1")
def test_the_gate_is_red_and_says_which_side_is_off(cli, finished, tmp_path):
    other, said = wide()
    finished(*pair(tmp_path, [other], [said.tracks[0]]), said=said)
    code, out, _ = cli(*PATCHES)
    assert code == 1
    assert "So it is base-triton-mtp-off that is off, for want of swa-window-width" in out
    assert "Fixes that this asks for" not in out
    finished(*pair(tmp_path, [said.tracks[0]], [other]), said=said)
    code, out, _ = cli(*PATCHES, "--json")
    document = json.loads(out)
    assert (code, document["kind"], document["fixes"]) == (1, "diff-patches", ["swa-window-width"])
    assert [s["status"] for s in document["sides"]] == ["base", "differs"]


# Its sides differ in yoco or a window fix, which 0.5.23 lacks or has itself.
@pytest.mark.releases("0.5.13.post1")
def test_it_is_said_which_patches_did_their_work(cli, finished, tmp_path):
    said = oracle()
    base = said.tracks[0]
    finished(*pair(tmp_path, [base], [base]), said=said)
    code, out, _ = cli(*PATCHES)
    assert code == 0
    assert "which is all that is known: swa-window-width." in out
    assert "Meant to change answers past the window: swa-window-width." in out
    code, out, _ = cli(*PATCHES, "--json")
    assert json.loads(out)["patches_compared"] == [
        {
            "id": "swa-window-width",
            "exercised": True,
            "known_by": "calls of what it hooks",
            "sides": ["with-triton-mtp-off"],
            "why_not": [],
        }
    ]
    assert json.loads(out)["prompt_logprobs"] is True


# Its sides differ in yoco or a window fix, which 0.5.23 lacks or has itself.
@pytest.mark.releases("0.5.13.post1")
def test_that_sides_agree_says_nothing_where_no_patch_did_its_work(cli, finished, tmp_path):
    said = oracle()
    base = said.tracks[0]
    finished(*pair(tmp_path, [base], [base], reached=()), said=said)
    code, out, err = cli(*PATCHES)
    assert code == 5
    assert "NOT exercised: swa-window-width (no run came to what it changes)." in out
    assert "never did their work" in err
    differs, said = wide()
    finished(*pair(tmp_path, [said.tracks[0]], [differs], reached=()), said=said)
    assert cli(*PATCHES)[0] == 1


YOCO = ("diff", "patches", "--base", "default,-yoco", "--with", "default", "--backend", "triton", "--mtp", "off")


# Its sides differ in yoco or a window fix, which 0.5.23 lacks or has itself.
@pytest.mark.releases("0.5.13.post1")
@pytest.mark.parametrize(("path", "wanted"), [("fused", 0), ("padded rows", 5)])
def test_for_yoco_prompts_are_left_out_and_it_must_have_done_its_work(cli, finished, tmp_path, path, wanted):
    said = oracle()
    base = said.tracks[0]
    paths = {"yoco": {path: 3}, "qk-norm-rope": {"fused": 9}}
    asked = finished(
        *pair(tmp_path, [base], [base], paths=paths, of_base="default,-yoco", patches="default"), said=said
    )
    code, out, _ = cli(*YOCO, "--json")
    document = json.loads(out)
    assert (code, document["exit_code"], document["prompt_logprobs"]) == (wanted, wanted, False)
    assert "yoco would step aside" in document["prompt_logprobs_why_not"]
    ((_, sides, options),) = asked
    assert not options.prompt_logprobs
    assert {side.environment()["GEMMA4_TRIAGE_YOCO_ROWS"] for side in sides} == {"1"}
    code, out, _ = cli(*YOCO)
    assert "left out on every side" in out
    assert ("Did their work, by their own count: yoco." if wanted == 0 else "NOT exercised: yoco (padded rows).") in out


# Its sides differ in yoco or a window fix, which 0.5.23 lacks or has itself.
@pytest.mark.releases("0.5.13.post1")
def test_without_a_base_nothing_was_checked(cli, finished, tmp_path):
    crashed, other = pair(tmp_path, [], [track()])
    finished(arm(tmp_path, column=crashed.side, ending=Ending.CRASHED), other)
    code, _, err = cli(*PATCHES)
    assert code == 5
    assert "no base run came to its end" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backends", "--backend", "triton,fa3"), "fa3"),
        (("backends", "--mtp", "maybe"), "maybe"),
        (("backends", "--patches", "default,+banana"), "banana"),
        (("backends", "--scenario", "e5b"), "e5b"),
        (("backends", "--probes", "loud"), "loud"),
        (("backends", "--device-model", "sm42"), "sm42"),
        (("backends", "--load", "heavy"), "there is no load 'heavy'"),
        (("backends", "--load", "pressure", "--scenario", "pictures"), "it runs on: e4b, 26b"),
        (("backends", "--load", "pressure", "--scenario", "e5b"), "there is no scenario 'e5b'"),
        (("backends", "--fault", "no-such-fault"), "no-such-fault"),
        (("backends", "--fault", "swa-state-swap"), "swa-state-swap"),
        (("patches",), "--with"),
        (("patches", "--with", "nothing-like-it"), "nothing-like-it"),
        (("patches", "--with", "default", "--fault", "no-such-fault"), "no-such-fault"),
        (("patches", "--with", "default"), "--base 'default' and --with 'default' are the same patches on SGLang 0.5."),
        (("patches", "--base", "default", "--with", "default,-swa-state-swap,+swa-state-swap"), "are the same patches"),
        (("patches", "--with", "default", "--tolerance", "-1"), "tolerance"),
        (("patches", "--with", "default", "--tolerance", "inf"), "tolerance"),
    ],
)
def test_a_usage_mistake_is_2_and_names_it(cli, words, said):
    code, out, err = cli("diff", *words, "--json")
    assert code == 2
    assert said in err
    assert json.loads(out)["exit_code"] == 2


def test_without_sglang_it_is_3(cli, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(readiness, "version", absent)
    for words in (("backends",), ("patches", "--with", "none")):
        code, _, err = cli("diff", *words)
        assert code == 3
        assert "SGLang is not installed" in err


def test_cuda_is_3(cli, monkeypatch):
    def refuse(*args):
        readiness.refuse_cuda({"cuda": True})

    monkeypatch.setattr(diff_live, "_run", refuse)
    code, _, err = cli("diff", "backends")
    assert code == 3
    assert "CUDA_VISIBLE_DEVICES=''" in err


def test_an_oracle_that_fails_is_3_with_the_end_of_its_log(tmp_path):
    from gemma4_repro.parity.load import Load
    from gemma4_repro.parity.oracle_run import OracleRun
    from gemma4_repro.toys import toy_path

    broken = dict(os.environ) | {"PYTHONPATH": str(tmp_path / "empty")}
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "torch.py").write_text("raise ImportError('no such thing here')\n")
    run = OracleRun(tmp_path, toy_path("toy-e4b"), Load([[2, 20, 21]], [2], [], []), broken)
    with run, pytest.raises(EnvironmentLacks, match="no such thing here"):
        run.wait()


def test_pictures_that_cannot_be_made_are_3_and_leave_no_toy(tmp_path):
    from gemma4_repro.parity.pictures import make_pictures, remove_pictures

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "transformers.py").write_text("raise ImportError('no such thing here')\n")
    broken = dict(os.environ) | {"PYTHONPATH": str(tmp_path / "empty")}
    with pytest.raises(EnvironmentLacks, match=r"pictures could not be made(.|\n)*no such thing here"):
        make_pictures(tmp_path, broken)
    remove_pictures(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "pictures.txt"}


def test_the_comparison_is_read_without_torch_and_sglang():
    """Only its processes import them."""
    parity = ", ".join(f"gemma4_repro.parity.{module}" for module in ("judge", "oracle_run", "pictures"))
    modules = f"{parity}, gemma4_triage.runs.view"
    code = f"import sys, {modules}; print([m for m in ('torch', 'sglang', 'transformers') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
