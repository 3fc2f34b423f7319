"""Whether a comparison of patch sets came through the patches in which they differ, and whether prompts were asked."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gemma4_repro.engine.outcome import Ending
from gemma4_repro.parity.compare_tracks import Tolerances, compare_tracks
from gemma4_repro.parity.exercise import differing, exercises, nothing_exercised, watched
from gemma4_repro.parity.load import SCENARIOS, asks_for_prompts, toys_of
from gemma4_repro.recorders.layers import ROWS_NAME, STATES_NAME, LayerRecorder
from gemma4_repro.recorders.logprobs import LogprobRecorder, read_logprobs
from gemma4_repro.recorders.reach import read_reached
from gemma4_repro.toys import toy_path
from gemma4_runtime.catalog import CATALOG
from parity_examples import PROMPT, TOKENS, arm, live_run, oracle, side, track

WITHOUT = side(patches="default,-yoco")
FUSED, REFUSED = {"yoco": {"fused": 2, "padded rows": 1}}, {"yoco": {"padded rows": 3}}


def found(folder, *arms, compared=("yoco",), prompt_logprobs=False):
    run = live_run(folder, *arms, compared=compared, prompt_logprobs=prompt_logprobs)
    said = exercises(run)
    return said, nothing_exercised(run, said)


# Of yoco and other patches that are not ported.
@pytest.mark.releases("0.5.13.post1")
class TestWhatDiffers:
    def test_patches_and_faults_of_one_side_alone(self):
        assert differing(side(), side()) == ()
        assert differing(side(), WITHOUT) == differing(WITHOUT, side()) == ("yoco",)
        assert differing(side(), side(faults=("stale-mapping",))) == ("stale-mapping",)

    def test_a_fault_is_in_the_place_of_what_it_spoils(self):
        spoiled = side(faults=("yoco-stale-cache-loc",))
        assert differing(side(), spoiled) == ("yoco-stale-cache-loc", "yoco")
        assert differing(WITHOUT, spoiled) == ("yoco-stale-cache-loc",)
        assert "yoco" not in side(patches="default", faults=("yoco-stale-cache-loc",)).attached

    def test_what_only_reports_is_not_watched(self):
        every = watched(patch.id for patch in CATALOG)
        assert "scheduler.internal_state" not in every
        assert {"gemma4.text_forward", "swa.free_swa"} <= set(every)


class TestPrompts:
    def test_they_are_left_out_where_one_side_would_step_aside(self):
        assert not asks_for_prompts("e4b", ["yoco", "routing"])
        assert not asks_for_prompts("e4b", ["yoco-stale-cache-loc"])
        assert asks_for_prompts("e4b", ["swa-window-width"])
        assert asks_for_prompts("26b", ["yoco"])

    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_it_is_known_which_model_shares_keys(self, scenario):
        config = json.loads((toy_path(toys_of(scenario)[0]) / "config.json").read_text())
        shared = config["text_config"].get("num_kv_shared_layers") or 0
        assert asks_for_prompts(scenario, ["yoco"]) == (shared == 0)

    def test_without_them_a_file_begins_with_the_first_answer(self, tmp_path):
        kept = LogprobRecorder(tmp_path)
        steps = [[(-0.5, token, None) for token in range(4)]] * 2
        kept.replied(0, {"meta_info": {"input_token_ids_logprobs": [], "output_token_ids_logprobs": steps}})
        kept.finish()
        assert read_logprobs(tmp_path)[0].shape == (2, 4)

    def test_rows_that_were_not_asked_for_are_not_compared(self):
        base = track()
        unasked = base.logprobs.copy()
        unasked[: PROMPT - 1] = np.nan
        other = replace(base, logprobs=unasked, asked_from=PROMPT - 1)
        for one, two in ((base, other), (other, base), (other, other)):
            same = compare_tracks(one, two, Tolerances())
            assert (same.agrees, same.rows, same.worst) == (True, TOKENS - PROMPT, 0)
        wrong = other.logprobs.copy()
        wrong[PROMPT - 1] += 1
        differs = compare_tracks(base, replace(other, logprobs=wrong), Tolerances())
        assert (differs.agrees, differs.first_over, differs.worst_position) == (False, PROMPT - 1, PROMPT - 1)


# Of yoco and other patches that are not ported.
@pytest.mark.releases("0.5.13.post1")
class TestExercise:
    def test_of_a_patch_that_counts_its_own_path_counts(self, tmp_path):
        (yoco,), nothing = found(tmp_path, arm(tmp_path, track(), paths=FUSED), arm(tmp_path, column=WITHOUT))
        assert (yoco.patch, yoco.sides, nothing) == ("yoco", ("triton-mtp-off",), False)

    @pytest.mark.parametrize(("paths", "reason"), [(REFUSED, "padded rows"), ({}, "no run came to what it changes")])
    def test_without_it_the_reasons_are_kept(self, tmp_path, paths, reason):
        reached = ("gemma4.text_forward",)
        (yoco,), nothing = found(tmp_path, arm(tmp_path, track(), paths=paths, reached=reached))
        assert (yoco.done, yoco.reasons, nothing) == (False, (reason,), True)

    def test_of_a_run_that_crashed_nothing_is_known(self, tmp_path):
        (yoco,), _ = found(tmp_path, arm(tmp_path, ending=Ending.CRASHED))
        assert "came to no end" in yoco.reasons[0]

    def test_another_is_known_by_the_functions_that_it_hooks(self, tmp_path):
        fixed = side(patches="default,+swa-window-width")
        for reached, done in ((("gemma4.attention_init",), True), (("scheduler.internal_state",), False)):
            one = arm(tmp_path, track(), column=fixed, reached=reached)
            (width,), nothing = found(tmp_path, one, compared=("swa-window-width",), prompt_logprobs=True)
            assert (width.done, nothing) == (done, not done)

    def test_where_prompts_were_left_out_it_is_for_these_patches(self, tmp_path):
        """That another patch did its work does not excuse it."""
        paths = {"qk-norm-rope": {"fused": 9}} | REFUSED
        one = arm(tmp_path, track(), paths=paths)
        compared = ("yoco", "qk-norm-rope")
        assert found(tmp_path, one, compared=compared)[1]
        assert not found(tmp_path, one, compared=compared, prompt_logprobs=True)[1]

    def test_equal_sets_are_no_question(self, tmp_path):
        assert found(tmp_path, arm(tmp_path, track()), compared=(), prompt_logprobs=True) == ((), False)

    def test_a_run_that_came_to_nothing_left_no_file(self, tmp_path):
        assert read_reached(tmp_path / "reached.txt") == frozenset()


class TestStatesOfAShortPrefill:
    """Layers of a model that are given all rows, then the last of each request."""

    @pytest.fixture
    def after(self, tmp_path):
        """Return the recorder's hook, of four layers, as a function of layer, rows, batch and positions."""
        torch = pytest.importorskip("torch")
        recorder = LayerRecorder(tmp_path)

        class Layer:
            def forward(self, positions, hidden_states, forward_batch):
                raise AssertionError

        def call(number, rows, batch, positions):
            given = {"positions": torch.tensor(positions) + 1, "hidden_states": None, "forward_batch": batch}
            states = torch.tensor(rows, dtype=torch.float32)[:, None] + 100 * number
            recorder._hook(number, 4)(Layer(), (), given, (states, None))

        return call

    @staticmethod
    def batch(mode, lengths, tokens):
        from types import SimpleNamespace

        import torch

        return SimpleNamespace(
            forward_mode=SimpleNamespace(name=mode),
            rids=["prompt-0", "prompt-1"],
            extend_seq_lens_cpu=lengths,
            input_ids=torch.tensor(tokens),
        )

    def test_it_is_written_down_in_the_rows_that_passed_every_layer(self, tmp_path, after):
        whole, last = self.batch("EXTEND", [2, 3], [7, 8, 9, 10, 11]), self.batch("DECODE", None, [8, 11])
        for number in (0, 1):
            after(number, [0, 1, 2, 3, 4], whole, [0, 1, 0, 1, 2])
        for number in (2, 3):
            after(number, [1, 4], last, [1, 2])
        line = json.loads((tmp_path / ROWS_NAME).read_text())
        assert line == {"mode": "EXTEND", "layers": 4, "hidden": 1, "rows": [[0, 1, 8], [1, 2, 11]]}
        states = np.fromfile(tmp_path / STATES_NAME, "<f4").reshape(2, 4)
        assert states.tolist() == [[1, 101, 201, 301], [4, 104, 204, 304]]

    def test_a_chunk_that_leaves_its_last_layers_out_is_not_written_down(self, tmp_path, after):
        chunk, decode = self.batch("EXTEND", [2, 1], [7, 8, 9]), self.batch("DECODE", None, [4, 5])
        after(0, [0, 1, 2], chunk, [0, 1, 0])
        for number in range(4):
            after(number, [0, 1], decode, [2, 1])
        (line,) = (tmp_path / ROWS_NAME).read_text().splitlines()
        assert (json.loads(line)["mode"], json.loads(line)["rows"]) == ("DECODE", [[0, 2, 4], [1, 1, 5]])


def test_an_oracle_knows_every_row():
    assert {one.asked_from for one in oracle().tracks} == {0}
