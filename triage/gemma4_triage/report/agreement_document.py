"""A comparison of live runs as one JSON document. The terminal view shows the same facts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gemma4_repro.log_exceptions import last_lines
from gemma4_repro.parity.compare_tracks import TOP_TOKENS, PromptComparison, Tolerances
from gemma4_repro.parity.exercise import Exercise
from gemma4_repro.parity.judge import TRANSFORMERS, Cause, SideVerdict
from gemma4_repro.parity.pressure import Death
from gemma4_repro.parity.runner import ArmRun, LiveRun
from gemma4_repro.parity.side import ChosenPatches
from gemma4_repro.verdict import EXIT_NOTHING_CHECKED
from gemma4_triage.report.agreement_words import (
    cause_sentence,
    crash_hint,
    fixes_named,
    nothing_checked,
    phase,
    prompts_left_out,
    summary_sentences,
    token_sentence,
)
from gemma4_triage.report.repro_document import LOG_LINES, stand_ins


@dataclass(frozen=True)
class Column:
    """One engine run. oracle: against transformers, always. gate: what decides; None for a base, the measure.

    death: how far it came, if not to its end.
    """

    arm: ArmRun
    oracle: SideVerdict
    gate: SideVerdict | None
    death: Death | None = None

    @property
    def shown(self) -> SideVerdict:
        """The verdict whose differences are shown."""
        return self.gate or self.oracle


@dataclass(frozen=True)
class Agreement:
    """What both `diff backends` and `diff patches` end in. exercises: of the patches in which sides differ, or of the
    faults that all have. chosen: the patches of every side, where they are the same.
    """

    run: LiveRun
    tolerances: Tolerances
    columns: tuple[Column, ...]
    exit_code: int
    exercises: tuple[Exercise, ...] = ()
    chosen: ChosenPatches | None = None

    @property
    def deciding(self) -> tuple[SideVerdict, ...]:
        return tuple(column.gate for column in self.columns if column.gate)


def agreement_document(agreement: Agreement) -> dict[str, Any]:
    """Everything that the view shows, and every side's series."""
    run = agreement.run
    return {
        "folder": str(run.folder),
        "scenario": run.scenario,
        "load": {"name": run.load_name, "requests": len(run.oracle.tracks), "swa_peak_above": run.swa_above},
        "summary": summary_sentences(agreement),
        "sglang_version": run.sglang_version,
        "duration_s": round(run.duration_s, 2),
        "import_s": run.import_s,
        "host_engine": {"stand_ins": stand_ins()},
        "tolerances": {
            "logprob": agreement.tolerances.logprob,
            "state": agreement.tolerances.state,
            "top_tokens": TOP_TOKENS,
        },
        "window": run.oracle.window,
        "prompt_logprobs": run.prompt_logprobs,
        "prompt_logprobs_why_not": None if run.prompt_logprobs else prompts_left_out(agreement.run),
        "fixes_added": list(agreement.chosen.added) if agreement.chosen else [],
        "fixes_left_out": list(agreement.chosen.left_out) if agreement.chosen else [],
        "patches_compared": [
            {
                "id": one.patch,
                "exercised": one.done,
                "known_by": "its own count" if one.counted else "calls of what it hooks",
                "sides": list(one.sides),
                "why_not": list(one.reasons),
            }
            for one in agreement.exercises
        ],
        "prompts": [
            {
                "prompt": track.prompt,
                "tokens": track.prompt_length,
                "new_tokens": len(track.tokens) - track.prompt_length,
            }
            for track in run.oracle.tracks
        ],
        "sides": [_side(column) for column in agreement.columns],
        "fixes": fixes_named(agreement.deciding),
        "nothing_checked_why": nothing_checked(agreement) if agreement.exit_code == EXIT_NOTHING_CHECKED else None,
        "exit_code": agreement.exit_code,
    }


def _side(column: Column) -> dict[str, Any]:
    arm = column.arm
    result = arm.outcome.result
    verdicts = [column.oracle] + ([column.gate] if column.gate and column.gate.reference != TRANSFORMERS else [])
    return {
        "id": arm.side.id,
        "backend": arm.side.backend,
        "mtp": arm.side.mtp,
        "patches": arm.side.patches,
        "attached": list(arm.side.attached),
        "faults": list(arm.side.faults),
        "probes": arm.side.probes,
        "device_model": arm.side.device_model,
        "status": column.gate.status if column.gate else "base",
        "duration_s": round(arm.outcome.duration_s, 2),
        **arm.outcome.how_it_ended(),
        "hint": crash_hint(column.shown),
        "accept_length": result.accept_length if result else None,
        "usage": {
            "full_peak": arm.usage.full_peak,
            "swa_peak": arm.usage.swa_peak,
            "full": list(arm.usage.full),
            "swa": list(arm.usage.swa),
        },
        "died": column.death and _died(column.death),
        "dumps": [{"path": str(entry.path), "state": entry.state} for entry in arm.dumps],
        "log": str(arm.outcome.log),
        "log_tail": [] if column.shown.completed else last_lines(arm.outcome.log, LOG_LINES),
        "against": [_against(verdict) for verdict in verdicts],
    }


def _died(death: Death) -> dict[str, Any]:
    step = death.step
    return {
        "type": death.raised.type_name if death.raised else None,
        "message": death.raised.message if death.raised else None,
        "step": step.number if step else None,
        "phase": phase(step.mode) if step else None,
        "between_steps": bool(step and step.ended),
        "prompts_in_step": sorted(step.slots) if step else [],
        "prompts_at_fault": list(death.prompts),
        "requests_finished": death.finished,
        "finished_agree_with_transformers": death.finished_agree,
        "full": death.full,
        "swa": death.swa,
        "dumps": [entry.dump_id for entry in death.dumps],
    }


def _against(verdict: SideVerdict) -> dict[str, Any]:
    return {
        "reference": verdict.reference,
        "agrees": verdict.agrees,
        "prompts": [_prompt(comparison, verdict.reference) for comparison in verdict.comparisons],
        "causes": [_cause(verdict, cause) for cause in verdict.causes],
    }


def _prompt(comparison: PromptComparison, reference: str) -> dict[str, Any]:
    token = comparison.token
    return {
        "prompt": comparison.prompt,
        "positions_compared": comparison.rows,
        "agrees": comparison.agrees,
        "logprob_difference": _finite(comparison.worst),
        "logprob_difference_position": comparison.worst_position,
        "first_position_over_tolerance": comparison.first_over,
        "first_token_difference": token
        and {
            "output": token.output_index,
            "position": token.position,
            "reference_token": token.reference_token,
            "token": token.other_token,
            "reference_logprob": _finite(token.reference_logprob),
            "token_logprob": _finite(token.other_logprob),
            "near_tie": token.near_tie,
            "text": token_sentence(comparison.prompt, token, reference),
        },
    }


def _cause(verdict: SideVerdict, cause: Cause) -> dict[str, Any]:
    place, window = cause.place, cause.window
    return {
        "prompt": cause.prompt,
        "prompts": list(cause.prompts),
        "position": place.position,
        "layer": place.layer,
        "layer_type": cause.layer_type,
        "phase": phase(place.mode),
        "state_difference": _finite(place.difference),
        "largest_state_difference": _finite(place.largest),
        "window": window
        and {
            "keys": window.other.keys,
            "reference_keys": window.reference.keys,
            "window": window.window,
            "difference_left": window.other.left,
        },
        "fix": window.fix if window else None,
        "text": cause_sentence(verdict, cause),
    }


def _finite(number: float) -> float | None:
    """JSON has no number for what is not one; a logprob of minus infinity is one that an engine may give."""
    return number if math.isfinite(number) else None
