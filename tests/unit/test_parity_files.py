"""What a comparison's processes leave on disk, read back; cut off and out of order as a crash leaves it."""

import json

import numpy as np
import pytest

from gemma4_repro.engine.outcome import Answer, ArmResult, IdleCheck
from gemma4_repro.engine.readiness import model_arguments
from gemma4_repro.errors import UnknownName
from gemma4_repro.parity.load import SCENARIOS, toys_of
from gemma4_repro.parity.side import Side, attached, read_backends, read_mtp
from gemma4_repro.parity.tracks import read_arm
from gemma4_repro.recorders.layers import ROWS_NAME, STATES_NAME
from gemma4_repro.recorders.logprobs import LogprobRecorder, read_logprobs
from gemma4_repro.recorders.usage import read_usage
from gemma4_repro.toys import toy_path

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

    def test_without_mtp_no_draft_is_asked_for(self):
        models = {"model_path": "target", "speculative_draft_model_path": "assistant"}
        plain = Side("a", "triton", False, "none").engine_arguments(models)
        assert not [name for name in plain if name.startswith("speculative_")]
        assert Side("a", "triton", True, "none").engine_arguments(models)["speculative_draft_model_path"] == "assistant"
