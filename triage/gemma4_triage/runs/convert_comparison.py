"""The record of a finished comparison of live runs: everything that its view shows, and every side's series."""

from __future__ import annotations

import math

from gemma4_dumps.errors import ExitCode
from gemma4_repro.engine.log_exceptions import last_lines
from gemma4_repro.parity.compare_tracks import TOP_TOKENS, PromptComparison
from gemma4_repro.parity.exercise import Exercise
from gemma4_repro.parity.judge import TRANSFORMERS, Agreement, Cause, Column, SideVerdict
from gemma4_repro.parity.pressure import Death
from gemma4_triage.runs.comparison_record import (
    BASE,
    OWN_COUNT,
    Against,
    ComparedLoad,
    ComparedPatch,
    ComparedPrompt,
    ComparisonKind,
    ComparisonRun,
    DeathRecord,
    PromptRecord,
    SideCause,
    SideRecord,
    TokenRecord,
    ToleranceRecord,
    UsageRecord,
    WindowRecord,
)
from gemma4_triage.runs.comparison_sentences import (
    cause_sentence,
    crash_hint,
    fixes_named,
    nothing_checked,
    phase,
    prompts_left_out,
    summary_sentences,
    token_sentence,
)
from gemma4_triage.runs.convert import LOG_LINES, readable, stand_ins, stored
from gemma4_triage.runs.record import HostEngine


def record_of_comparison(kind: ComparisonKind, agreement: Agreement) -> ComparisonRun:
    """Return the record of a comparison."""
    run, tolerances, chosen = agreement.run, agreement.tolerances, agreement.chosen
    return ComparisonRun(
        kind=kind,
        folder=readable(run.folder),
        scenario=run.scenario,
        load=ComparedLoad(name=run.load_name, requests=len(run.oracle.tracks), swa_peak_above=run.swa_above),
        summary=tuple(summary_sentences(agreement)),
        sglang_version=run.sglang_version,
        duration_s=round(run.duration_s, 2),
        import_s=run.import_s,
        host_engine=HostEngine(stand_ins=stand_ins()),
        tolerances=ToleranceRecord(logprob=tolerances.logprob, state=tolerances.state, top_tokens=TOP_TOKENS),
        window=run.oracle.window,
        prompt_logprobs=run.prompt_logprobs,
        prompt_logprobs_why_not=None if run.prompt_logprobs else prompts_left_out(run),
        fixes_added=chosen.added if chosen else (),
        fixes_left_out=chosen.left_out if chosen else (),
        patches_compared=tuple(compared_patch(one) for one in agreement.exercises),
        prompts=tuple(
            ComparedPrompt(
                prompt=track.prompt, tokens=track.prompt_length, new_tokens=len(track.tokens) - track.prompt_length
            )
            for track in run.oracle.tracks
        ),
        sides=tuple(_side(column) for column in agreement.columns),
        fixes=tuple(fixes_named(agreement.deciding)),
        nothing_checked_why=nothing_checked(agreement) if agreement.exit_code == ExitCode.NOTHING_CHECKED else None,
        exit_code=agreement.exit_code,
    )


def compared_patch(exercise: Exercise) -> ComparedPatch:
    """Return whether a patch did its work, and how that is known."""
    return ComparedPatch(
        id=exercise.patch,
        exercised=exercise.done,
        known_by=OWN_COUNT if exercise.counted else "calls of what it hooks",
        sides=exercise.sides,
        why_not=exercise.reasons,
    )


def _side(column: Column) -> SideRecord:
    arm, side, outcome = column.arm, column.arm.side, column.arm.outcome
    verdicts = [column.oracle] + ([column.gate] if column.gate and column.gate.reference != TRANSFORMERS else [])
    return SideRecord(
        id=side.id,
        backend=side.backend,
        mtp=side.mtp,
        patches=side.patches,
        attached=side.attached,
        faults=side.faults,
        probes=side.probes,
        device_model=side.device_model,
        status=column.gate.status if column.gate else BASE,
        duration_s=round(outcome.duration_s, 2),
        **outcome.how_it_ended(),
        hint=crash_hint(column.shown),
        accept_length=outcome.result.accept_length if outcome.result else None,
        usage=UsageRecord(
            full_peak=arm.usage.full_peak, swa_peak=arm.usage.swa_peak, full=arm.usage.full, swa=arm.usage.swa
        ),
        died=column.death and _death(column.death),
        dumps=stored(arm.dumps),
        log=readable(outcome.log),
        log_tail=() if column.shown.completed else tuple(last_lines(outcome.log, LOG_LINES)),
        against=tuple(_against(verdict) for verdict in verdicts),
    )


def _death(death: Death) -> DeathRecord:
    step = death.step
    return DeathRecord(
        type=death.raised.type_name if death.raised else None,
        message=death.raised.message if death.raised else None,
        step=step.number if step else None,
        phase=phase(step.mode) if step else None,
        between_steps=bool(step and step.ended),
        prompts_in_step=tuple(sorted(step.slots)) if step else (),
        prompts_at_fault=death.prompts,
        requests_finished=death.finished,
        finished_agree_with_transformers=death.finished_agree,
        full=death.full,
        swa=death.swa,
        dumps=tuple(entry.dump_id for entry in death.dumps),
        answers_compared=len(death.compared),
    )


def _against(verdict: SideVerdict) -> Against:
    return Against(
        reference=verdict.reference,
        agrees=verdict.agrees,
        prompts=tuple(_prompt(comparison, verdict.reference) for comparison in verdict.comparisons),
        causes=tuple(_cause(verdict, cause) for cause in verdict.causes),
    )


def _prompt(comparison: PromptComparison, reference: str) -> PromptRecord:
    token = comparison.token
    return PromptRecord(
        prompt=comparison.prompt,
        positions_compared=comparison.rows,
        agrees=comparison.agrees,
        logprob_difference=_finite(comparison.worst),
        logprob_difference_position=comparison.worst_position,
        first_position_over_tolerance=comparison.first_over,
        first_token_difference=token
        and TokenRecord(
            output=token.output_index,
            position=token.position,
            reference_token=token.reference_token,
            token=token.other_token,
            reference_logprob=_finite(token.reference_logprob),
            token_logprob=_finite(token.other_logprob),
            near_tie=token.near_tie,
            text=token_sentence(comparison.prompt, token, reference),
        ),
    )


def _cause(verdict: SideVerdict, cause: Cause) -> SideCause:
    place, window = cause.place, cause.window
    return SideCause(
        prompt=cause.prompt,
        prompts=cause.prompts,
        position=place.position,
        layer=place.layer,
        layer_type=cause.layer_type,
        phase=phase(place.mode),
        state_difference=_finite(place.difference),
        largest_state_difference=_finite(place.largest),
        window=window
        and WindowRecord(
            keys=window.other.keys,
            reference_keys=window.reference.keys,
            window=window.window,
            difference_left=_finite(window.other.left),
        ),
        fix=window.fix if window else None,
        text=cause_sentence(verdict, cause),
    )


def _finite(number: float) -> float | None:
    """JSON has no number for what is not one; a logprob of minus infinity is one that an engine may give."""
    return number if math.isfinite(number) else None
