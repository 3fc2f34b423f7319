"""How a run under pressure died: at which step and request, with which dump, and what it had finished."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.schema import Offence
from gemma4_dumps.store import DumpStore
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.errors import UnknownName
from gemma4_repro.parity.compare_tracks import Tolerances
from gemma4_repro.parity.load import LOADS, PRESSURE, PRESSURE_SWA_ABOVE, SCENARIOS, check_load, text_load
from gemma4_repro.parity.pressure import below_pressure, death_of
from gemma4_repro.parity.side import attached, patches_for
from gemma4_repro.parity.tracks import read_finished
from gemma4_repro.recorders.layers import ROWS_NAME, STATES_NAME
from gemma4_repro.recorders.usage import FINISHED_NAME, Step, Usage, read_usage
from gemma4_repro.toys.language import VOCAB_SIZE
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import BASE, installed_or_base
from gemma4_runtime.standing import refusal
from parity_examples import arm, live_run, side, track

ILLEGAL = ("IllegalAddress", "page 70 of 65")
STEP = Step(number=4, began=1000.0, mode="DECODE", slots={7: 8, 8: 9, 9: 1}, ended=False, raised="IllegalAddress")


def dead(folder, step=STEP, dumps=(), finished=(), raised=(("OSError", "earlier"), ILLEGAL), answers=()):
    usage = Usage((0.2, 0.3), (0.5, 0.94), step, tuple(answers))
    return replace(
        arm(folder, ending=Ending.CRASHED, raised=raised, dumps=dumps), usage=usage, finished=tuple(finished)
    )


def death(folder, *arguments, **changes):
    one = dead(folder, *arguments, **changes)
    return death_of(one, live_run(folder, one), Tolerances())


class TestDeath:
    def test_a_run_that_came_to_its_end_has_none(self, tmp_path):
        assert death_of(arm(tmp_path, track()), live_run(tmp_path), Tolerances()) is None

    def test_it_is_the_exception_that_left_the_step(self, tmp_path):
        found = death(tmp_path)
        assert (found.raised.type_name, found.raised.message) == ILLEGAL
        assert (found.step.number, found.full, found.swa) == (4, 0.3, 0.94)
        # A log that lost the message still leaves the type that the recorder saw.
        assert death(tmp_path, raised=()).raised.type_name == "IllegalAddress"

    def test_of_a_step_that_nobody_ended_the_pools_are_not_known(self, tmp_path):
        found = death(tmp_path, replace(STEP, raised=None), raised=())
        assert (found.raised, found.full, found.swa) == (None, None, None)

    def test_after_a_step_they_are_as_it_left_them(self, tmp_path):
        found = death(tmp_path, replace(STEP, ended=True, raised=None))
        assert (found.swa, found.dumps) == (0.94, ())

    def test_before_any_step_nothing_is_known(self, tmp_path):
        found = death(tmp_path, None)
        assert (found.step, found.prompts, found.dumps, found.finished) == (None, (), (), 0)

    def test_dumps_of_that_step_name_the_prompts_by_their_slots(self, tmp_path):
        store = DumpStore(tmp_path / "dumps")
        outside = Offence(table="page_table", row=1, column=7, value=70, lower=0, upper=65, request_slot=9)
        inside = Offence(table="page_table", row=0, column=0, value=3, lower=0, upper=65, request_slot=8)
        unknown = replace_slot(outside, 77)
        store.write(seed_bug_draft(offences=[inside, outside, unknown]))
        (entry,) = store.list()
        found = death(tmp_path, dumps=[entry])
        assert ([one.dump_id for one in found.dumps], found.prompts) == ([entry.dump_id], (8,))
        earlier = death(tmp_path, replace(STEP, began=entry.manifest.created_utc.timestamp() + 1), dumps=[entry])
        assert (earlier.dumps, earlier.prompts) == ((), ())

    def test_where_all_pages_are_in_range_all_that_are_wrong_count(self, tmp_path):
        store = DumpStore(tmp_path / "dumps")
        rows = [
            Offence(table="t", row=r, column=0, value=3, lower=0, upper=65, request_slot=s) for r, s in ((0, 8), (2, 1))
        ]
        store.write(seed_bug_draft(offences=rows))
        assert death(tmp_path, dumps=store.list()).prompts == (7, 9)

    def test_what_had_been_finished_is_held_against_transformers(self, tmp_path):
        right = unasked(track())
        found = death(tmp_path, finished=[right], answers=[0])
        assert (found.finished, found.finished_agree) == (1, True)
        wrong = list(right.tokens)
        wrong[-1] = (wrong[-1] + 1) % 6
        assert death(tmp_path, finished=[replace(right, tokens=tuple(wrong))]).finished_agree is False
        states = right.states.copy()
        states[4] += 1
        assert death(tmp_path, finished=[replace(right, states=states)]).finished_agree is False
        assert death(tmp_path).finished_agree is None


def replace_slot(offence, slot):
    return offence.model_copy(update={"request_slot": slot})


def unasked(base):
    """Return a track as `read_finished` gives it: tokens and states alone."""
    return replace(base, logprobs=np.full(base.logprobs.shape, np.nan), asked_from=len(base.tokens) - 1)


class TestPressure:
    def test_a_side_has_to_exceed_the_share(self, tmp_path):
        full, low = arm(tmp_path, track()), arm(tmp_path, track(), column=side("other"))
        full = replace(full, usage=Usage((0.3,), (0.2, 0.86, 0.1)))
        low = replace(low, usage=Usage((0.3,), (0.85,)))
        run = replace(live_run(tmp_path, full, low), swa_above=0.85)
        assert below_pressure(run) == (low,)
        assert below_pressure(replace(run, swa_above=None)) == ()

    def test_the_load_is_what_was_asked_for(self):
        load = text_load(PRESSURE)
        assert len(load.prompts) == len(load.new_tokens) >= 24
        assert load.swa_above == PRESSURE_SWA_ABOVE == 0.85
        assert load.prompts == text_load(PRESSURE).prompts
        assert len({tuple(prompt) for prompt in load.prompts}) == len(load.prompts)
        assert max(max(prompt) for prompt in load.prompts) < VOCAB_SIZE

    def test_it_is_refused_where_it_cannot_run(self):
        for name, scenarios in LOADS.items():
            for scenario in scenarios:
                check_load(name, scenario)
        with pytest.raises(UnknownName, match="cannot run on scenario 'pictures'") as refused:
            check_load(PRESSURE, "pictures")
        assert (refused.value.exit_code, refused.value.hint) == (2, "it runs on: e4b, 26b")
        with pytest.raises(UnknownName, match="no load 'heavy'"):
            check_load("heavy", "e4b")
        with pytest.raises(UnknownName, match="no scenario 'e5b'"):
            check_load(PRESSURE, "e5b")
        assert set(SCENARIOS) == set(LOADS["prompts"])


class TestPatches:
    def test_what_repairs_a_fault_is_left_out(self):
        chosen = patches_for("prompts", ("swa-state-stale",))
        assert (chosen.ids, chosen.left_out, chosen.added) == ("default,-swa-state-swap", ("swa-state-swap",), ())
        assert "swa-state-swap" not in attached(chosen.ids, ("swa-state-stale",))

    def test_under_pressure_the_window_is_right(self):
        chosen = patches_for(PRESSURE, ())
        # 0.5.14 and later have the first themselves.
        added = ("swa-window-width",) * (installed_or_base() == BASE) + ("triton-decode-window",)
        assert chosen.ids == ",".join(["default", *(f"+{fix}" for fix in added)])
        assert (chosen.added, chosen.left_out) == (added, ())

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("fault", [patch.id for patch in CATALOG if patch.kind is Kind.FAULT])
    @pytest.mark.parametrize("load", LOADS)
    def test_whatever_fault_the_runtime_accepts_the_words(self, load, fault):
        if refusal(next(patch for patch in CATALOG if patch.id == fault), installed_or_base()):
            with pytest.raises(UnknownName, match=f"{fault}.* is installed: "):
                patches_for(load, (fault,))
            return
        chosen = patches_for(load, (fault,))
        assert not set(chosen.left_out) & set(attached(chosen.ids, (fault,)))
        assert set(chosen.added) <= set(attached(chosen.ids, (fault,)))

    def test_an_unknown_fault_is_refused(self):
        with pytest.raises(UnknownName, match="no-such-fault"):
            patches_for(PRESSURE, ("no-such-fault",))


BEGINS = {"begins": 5.5, "mode": "DECODE", "requests": [[3, 1], [4, 2]]}


class TestUsage:
    def write(self, path, *lines, cut=0):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        path.write_text(text[: len(text) - cut])
        return read_usage(path)

    def test_a_run_that_ended_well_ended_its_last_step(self, tmp_path):
        first = BEGINS | {"step": 1, "finished": []}
        second = BEGINS | {"step": 2, "finished": [2, 0]}
        ended = [{"step": 1, "full": 0.1, "swa": 0.9}, {"step": 2, "full": 0.2, "swa": 0.8}]
        usage = self.write(tmp_path / "u", first, ended[0], second, ended[1])
        assert (usage.full, usage.swa, usage.swa_peak) == ((0.1, 0.2), (0.9, 0.8), 0.9)
        assert usage.last == Step(2, 5.5, "DECODE", {3: 1, 4: 2}, True, None)
        assert usage.finished == (0, 2)

    def test_an_exception_is_no_good_end_and_its_pools_count(self, tmp_path):
        begins = BEGINS | {"step": 1, "finished": []}
        usage = self.write(tmp_path / "u", begins, {"step": 1, "full": 0.1, "swa": 0.94, "raised": "IllegalAddress"})
        assert (usage.last.ended, usage.last.raised, usage.swa) == (False, "IllegalAddress", (0.94,))

    @pytest.mark.parametrize("cut", [1, 5, 30])
    def test_a_process_that_was_killed_leaves_the_step_that_it_began(self, tmp_path, cut):
        first = BEGINS | {"step": 1, "finished": []}
        last = {"step": 1, "full": 0.123456, "swa": 0.654321}
        usage = self.write(tmp_path / "u", first, last, cut=cut)
        assert (usage.last.number, usage.last.ended, usage.last.raised, usage.swa) == (1, False, None, ())

    def test_a_run_that_began_no_step_has_none(self, tmp_path):
        assert read_usage(tmp_path / "absent").last is None


def test_finished_answers_have_tokens_and_states_and_no_logprobs(tmp_path):
    rows = [[2, 0, 5], [2, 1, 6], [2, 2, 7]]
    (tmp_path / ROWS_NAME).write_text(json.dumps({"mode": "EXTEND", "layers": 2, "hidden": 3, "rows": rows}) + "\n")
    (tmp_path / STATES_NAME).write_bytes(np.arange(18, dtype="<f4").tobytes())
    (tmp_path / FINISHED_NAME).write_text("[2, [7, 8]]\n[1, [3, 4")
    prompts = [[1], [1], [5, 6]]
    (found,) = read_finished(tmp_path, prompts, 9)
    assert (found.prompt, found.tokens, found.prompt_length, found.asked_from) == (2, (5, 6, 7, 8), 2, 3)
    assert found.states[2, 0].tolist() == [12, 13, 14]
    assert (found.logprobs.shape, np.isnan(found.logprobs).all()) == ((3, 9), True)
    assert read_finished(tmp_path / "nothing", prompts, 9) == ()
