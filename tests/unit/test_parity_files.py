"""What a comparison's processes leave on disk, read back; cut off and out of order as a crash leaves it."""

import itertools
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from gemma4_repro.engine.outcome import Answer, ArmResult, IdleCheck
from gemma4_repro.engine.readiness import model_arguments
from gemma4_repro.errors import UnknownName
from gemma4_repro.parity import side
from gemma4_repro.parity.load import SCENARIOS, toys_of
from gemma4_repro.parity.side import Side, attached, read_backends, read_mtp
from gemma4_repro.parity.tracks import read_arm
from gemma4_repro.recorders.layers import ROWS_NAME, STATES_NAME
from gemma4_repro.recorders.logprobs import LogprobRecorder, read_logprobs
from gemma4_repro.recorders.usage import read_usage
from gemma4_repro.toys import toy_path
from gemma4_runtime.releases import RUNNABLE
from gemma4_triage.cli import diff, diff_live

PROMPT, OUTPUT, VOCABULARY, LAYERS, HIDDEN = [5, 6], [7, 8], 9, 2, 3


def reply():
    """Return an answer as SGLang gives it: nothing is said of the first token."""
    steps = [[(-0.1 * position, token, None) for token in range(VOCABULARY)] for position in range(3)]
    return {"meta_info": {"input_token_ids_logprobs": [None, steps[0]], "output_token_ids_logprobs": steps[1:]}}


def result():
    idle = IdleCheck(leak_checker_ran=True, flush_succeeded=True, used_tokens_after_flush=0, used_share_after_flush=0)
    answers = (Answer(prompt=0, output_ids=tuple(OUTPUT), verify_rounds=0),)
    return ArmResult(arm="a", sglang_version="0", start_s=1, load_s=1, answers=answers, idle=idle)


def write_states(folder, forwards, cut_bytes=0):
    """forwards: (mode, rows). Every row's states are its number."""
    lines, count = "", 0
    for mode, rows in forwards:
        lines += json.dumps({"mode": mode, "layers": LAYERS, "hidden": HIDDEN, "rows": rows}) + "\n"
        count += len(rows)
    (folder / ROWS_NAME).write_text(lines)
    values = np.repeat(np.arange(count, dtype="<f4"), LAYERS * HIDDEN).tobytes()
    (folder / STATES_NAME).write_bytes(values[: len(values) - cut_bytes])


@pytest.fixture
def folder(tmp_path):
    kept = LogprobRecorder(tmp_path)
    kept.replied(0, reply())
    kept.finish()
    return tmp_path


def test_logprobs_begin_with_what_follows_the_first_token(folder):
    rows = read_logprobs(folder)[0]
    assert rows.shape == (3, VOCABULARY)
    assert rows[:, 0].tolist() == pytest.approx([0, -0.1, -0.2])


def test_a_run_without_logprobs_leaves_no_file(tmp_path):
    kept = LogprobRecorder(tmp_path)
    kept.replied(0, {"meta_info": {}})
    kept.finish()
    assert list(tmp_path.iterdir()) == []
    assert read_arm(tmp_path, [PROMPT], result()) == ()


def test_of_a_position_the_last_row_with_its_token_counts(folder):
    """A refused draft leaves a row of another token, and an accepted one may be computed again."""
    verify = [[0, 2, 4], [0, 2, 7]]
    write_states(folder, [("EXTEND", [[0, 0, 5], [0, 1, 6]]), ("TARGET_VERIFY", verify), ("DECODE", [[0, 2, 7]])])
    (found,) = read_arm(folder, [PROMPT], result())
    assert found.states[:, 0, 0].tolist() == [0, 1, 4]
    assert found.modes == ("EXTEND", "EXTEND", "DECODE")
    assert (found.tokens, found.prompt_length) == ((5, 6, 7, 8), 2)


def test_a_position_that_was_never_recorded_is_nan(folder):
    write_states(folder, [("EXTEND", [[0, 0, 5], [0, 1, 6]])])
    (found,) = read_arm(folder, [PROMPT], result())
    assert np.isnan(found.states[2]).all()
    assert found.mode(2) == ""


@pytest.mark.parametrize("cut_bytes", [1, 4, LAYERS * HIDDEN * 4, LAYERS * HIDDEN * 4 + 3])
def test_states_that_were_cut_off_leave_their_rows_out(folder, cut_bytes):
    write_states(folder, [("EXTEND", [[0, 0, 5], [0, 1, 6]]), ("DECODE", [[0, 2, 7]])], cut_bytes)
    (found,) = read_arm(folder, [PROMPT], result())
    assert found.states[0, 0].tolist() == [0] * HIDDEN
    assert np.isnan(found.states[2]).all()


def test_usage_drops_a_line_without_its_end(tmp_path):
    path = tmp_path / "usage.jsonl"
    assert read_usage(path).full_peak == 0
    path.write_text('{"full": 0.25, "swa": 0.5}\n{"full": 0.5, "swa": 0.4}\n{"full": 0.9')
    usage = read_usage(path)
    assert (usage.full_peak, usage.swa_peak, usage.swa) == (0.5, 0.5, (0.5, 0.4))


class TestSides:
    def test_lists_keep_their_order_and_name_strangers(self):
        assert read_backends("trtllm_mha, triton,trtllm_mha") == ("trtllm_mha", "triton")
        assert read_mtp("on,off") == (True, False)
        assert read_mtp("off") == (False,)
        with pytest.raises(UnknownName, match="fa3") as refused:
            read_backends("triton,fa3")
        assert refused.value.exit_code == 2
        assert "trtllm_mha" in refused.value.hint
        with pytest.raises(UnknownName, match="nothing"):
            read_mtp(" , ")

    def test_an_unknown_scenario_names_the_known_ones(self):
        with pytest.raises(UnknownName, match="'e5b'") as refused:
            toys_of("e5b")
        assert (refused.value.exit_code, refused.value.hint) == (2, "known: e4b, 26b, pictures")

    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_every_scenario_has_an_assistant_of_its_target(self, scenario):
        """So that MTP can be on; with pictures the target's text weights are those of the toy it is made of."""
        target, assistant = toys_of(scenario)
        assert assistant == f"{target}-assistant"
        paths = {"model_path": str(toy_path(target)), "speculative_draft_model_path": str(toy_path(assistant))}
        assert model_arguments(toys_of(scenario)) == paths

    def test_a_patch_set_is_read_as_the_runtime_reads_it(self, monkeypatch):
        monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", "swa-window-width")
        assert attached("none") == ()
        assert set(attached("default,+triton-decode-window")) >= {"swa-state-swap", "triton-decode-window"}
        for wrong in ("default,+banana", "-swa-state-swap", "default,default"):
            with pytest.raises(UnknownName):
                attached(wrong)
        with pytest.raises(UnknownName, match="no-such-fault"):
            attached("none", ("no-such-fault",))

    @pytest.mark.parametrize(
        ("patches", "faults", "why"),
        [
            ("default", ("yoco-stale-cache-loc",), "0.5.23 is installed: it acts on yoco, which is not ported"),
            ("default", ("unmergeable-spec-info",), "0.5.23 is installed: there is no V1 worker"),
            ("default,+yoco", (), "0.5.23 is installed: needs new bodies"),
            ("default,+swa-window-width", (), "SGLang 0.5.23 has itself, since 0.5.14, models/gemma4_causal.py"),
        ],
    )
    def test_what_a_release_lacks_is_refused_with_the_reason(self, monkeypatch, patches, faults, why):
        monkeypatch.setattr(side, "installed_or_base", lambda: "0.5.23")
        with pytest.raises(UnknownName, match=why):
            attached(patches, faults)

    def test_without_mtp_no_draft_is_asked_for(self):
        models = {"model_path": "target", "speculative_draft_model_path": "assistant"}
        plain = Side("a", "triton", False, "none").engine_arguments(models)
        assert not [name for name in plain if name.startswith("speculative_")]
        assert Side("a", "triton", True, "none").engine_arguments(models)["speculative_draft_model_path"] == "assistant"


def examples():
    """Return each line of help and docs that compares live runs, and the releases that it is for."""
    for module in (diff, diff_live):
        for line in re.findall(r"For example: (gemma4-triage diff (?:patches|backends) [^\"\n]*)", source_of(module)):
            yield line, RUNNABLE
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        releases = RUNNABLE
        for line in block.splitlines():
            if line.startswith("# on SGLang "):
                releases = tuple(release for release in RUNNABLE if f"SGLang {release}," in line)
            elif line.startswith(("gemma4-triage diff patches", "gemma4-triage diff backends")):
                yield line, releases


def source_of(module):
    return Path(module.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "release"), [(line, release) for line, releases in examples() for release in releases]
)
def test_an_example_runs_on_the_releases_that_it_is_for(line, release, monkeypatch):
    monkeypatch.setattr(side, "installed_or_base", lambda: release)
    words = shlex.split(line, comments=True)
    given = {word: value for word, value in itertools.pairwise(words) if word.startswith("--")}
    faults = tuple(given[word] for word in ("--fault",) if word in given)
    if "patches" in words[2:3]:
        assert faults or set(attached(given["--with"])) != set(attached(given.get("--base", "default")))
        attached(given["--with"], faults)
    else:
        attached(given.get("--patches", "default"), faults)


def test_there_are_examples_for_each_release():
    assert {release for _, releases in examples() for release in releases} == set(RUNNABLE)
