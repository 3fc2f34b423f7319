"""verdict.json of `diff backends` or `diff patches` as the run of a report: a side is an arm, a prompt a check."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import number_of
from gemma4_repro.parity.judge import TRANSFORMERS
from gemma4_triage.report.model.limits import MAX_ARMS, MAX_LINES, pairs_of
from gemma4_triage.report.model.records import Arm, Check, Run
from gemma4_triage.report.model.run_part import facts_of
from gemma4_triage.runs.comparison_record import ComparisonRun, DeathRecord, PromptRecord, SideRecord


def comparison_part(record: ComparisonRun) -> Run:
    """Sides in the order of the columns."""
    dumps = {side.id: len(side.dumps) for side in record.sides}
    return Run(
        name=record.kind.replace("-", " "),
        symptom=f"the same {'requests' if record.load.name == 'pressure' else 'prompts'} on every side, held against "
        + ("transformers" if record.kind == "diff-backends" else "the base"),
        arms=tuple(_arm(side, dumps, record) for side in record.sides[:MAX_ARMS]),
        probes=(),
        cases=(),
        root_cause="",
        causes=tuple(_causes(record))[:MAX_LINES],
        repeat=_repeat(record),
        **facts_of(record),
    )


def _arm(side: SideRecord, dumps: dict[str, int], record: ComparisonRun) -> Arm:
    checks = tuple(_checks(side, dumps, record))[:MAX_LINES]
    failed = any(check.status == "failed" for check in checks)
    unchecked = any(check.status == "not checked" for check in checks)
    return Arm(
        id=side.id,
        title=side.title,
        device_model=side.device_model,
        status="surprise" if failed else "not checked" if unchecked else "ok",
        ending=_ending(side),
        duration_s=side.duration_s,
        checks=checks,
        numbers=pairs_of(_numbers(side)),
        environment=pairs_of(_environment(side)),
        log_tail=tuple(side.log_tail[-MAX_LINES:]),
        dump_count=len(side.dumps),
        repeat="",
    )


def _checks(side: SideRecord, dumps: dict[str, int], record: ComparisonRun) -> Iterator[Check]:
    """Return the checks. A failed one stands for exit code 1: a base is the measure."""
    ended, exit_code, wanted = side.completed, record.exit_code, record.load.swa_peak_above
    if side.is_base:
        yield Check(expected="the measure", observed=_ending(side), status="ok" if ended else "not checked")
        return
    yield Check(expected="runs to its end", observed=_ending(side), status="ok" if ended else "failed")
    against = side.against[-1]
    for prompt in against.prompts:
        expected = f"prompt {prompt.prompt} as {against.reference}"
        yield Check(expected=expected, observed=_observed(prompt), status="ok" if prompt.agrees else "failed")
    if wanted is not None:
        status = "ok" if side.usage.swa_peak > wanted else "not checked"
        observed = f"peak {side.usage.swa_peak:.0%}"
        yield Check(expected=f"more than {wanted:.0%} of the SWA pool in use", observed=observed, status=status)
    if ended and against.prompts and exit_code == ExitCode.NOTHING_CHECKED:
        expected = "a patch of the difference does its work"
        if record.kind == "diff-backends":
            expected = "the sides' agreement says something"
        yield Check(expected=expected, observed=record.nothing_checked_why or "none did", status="not checked")
    if ended and not against.prompts:
        status = "not checked" if exit_code == ExitCode.NOTHING_CHECKED else "failed"
        yield Check(expected=f"as {against.reference}", observed="nothing to compare with", status=status)
    of_reference = dumps.get(against.reference, 0)
    yield Check(
        expected=f"no more than {number_of(of_reference, 'dump')}, as the base" if of_reference else "no dump",
        observed=number_of(len(side.dumps), "dump"),
        status="failed" if len(side.dumps) > of_reference else "ok",
    )


def _observed(prompt: PromptRecord) -> str:
    worst = "" if prompt.logprob_difference is None else f"{prompt.logprob_difference:.1e}"
    if prompt.logprob_difference_position is not None:
        worst += f" at position {prompt.logprob_difference_position}"
    token = f"; {prompt.first_token_difference.text}" if prompt.first_token_difference else ""
    if prompt.first_position_over_tolerance is None:
        return f"logprobs equal up to {worst or 'the tolerance'}{token}"
    return f"logprobs differ from position {prompt.first_position_over_tolerance}, most by {worst or '?'}{token}"


def _causes(record: ComparisonRun) -> Iterator[str]:
    yield from record.summary
    if record.fixes_added:
        yield f"Added to the default patches for this load: {', '.join(record.fixes_added)}"
    if record.fixes_left_out:
        yield f"Left out of the default patches, because they repair the fault: {', '.join(record.fixes_left_out)}"
    for side in record.sides:
        if not side.is_base:
            yield from (f"Side {side.id}: {cause.text}" for cause in side.against[-1].causes)
        if side.hint:
            yield f"Side {side.id}: {side.hint}"
    for one in record.patches_compared:
        if not one.exercised:
            yield f"Patch {one.id} was not exercised: {'; '.join(one.why_not)}"
    if record.prompt_logprobs_why_not:
        yield record.prompt_logprobs_why_not
    if record.fixes_sentence:
        yield record.fixes_sentence


def _ending(side: SideRecord) -> str:
    how = side.signal or (f"exit {side.exit_code}" if side.exit_code else "")
    return f"{side.ending}{f' ({how})' if how else ''}{f': {side.problem}' if side.problem else ''}"


def _numbers(side: SideRecord) -> Iterator[tuple[str, str]]:
    if side.mtp and side.accept_length is not None:
        yield "accept length", f"{side.accept_length:.2f}"
    yield "full pool, peak", f"{side.usage.full_peak:.0%}"
    yield "SWA pool, peak", f"{side.usage.swa_peak:.0%}"
    if side.died:
        yield from _died(side.died)
    if side.against[0].reference == TRANSFORMERS and side.against[0].prompts:
        found = [one.logprob_difference for one in side.against[0].prompts if one.logprob_difference is not None]
        yield "logprobs against transformers", f"up to {max(found):.1e}" if found else "not finite"


def _died(death: DeathRecord) -> Iterator[tuple[str, str]]:
    if death.step is not None:
        yield "died in step", f"{death.step} ({death.phase or 'unknown'})"
    yield "requests answered before", str(death.requests_finished)
    if death.prompts_at_fault:
        yield "prompts with bad pages", ", ".join(map(str, death.prompts_at_fault))
    if death.swa is not None and death.full is not None:
        yield "pools in use then", f"SWA {death.swa:.0%}, full {death.full:.0%}"
    if death.dumps:
        yield "dumps of that step", ", ".join(death.dumps)


def _environment(side: SideRecord) -> Iterator[tuple[str, str]]:
    yield "patches", side.patches
    yield "attached", ", ".join(side.attached) or "none"
    if side.faults:
        yield "injected on purpose", ", ".join(side.faults)
    if side.probes:
        yield "probes", side.probes


def _repeat(record: ComparisonRun) -> str:
    """Return the command that the sides tell."""
    first, last = record.sides[0], record.sides[-1]
    words = ["gemma4-triage", *record.kind.split("-")]
    words += [record.scenario] if record.scenario != "e4b" else []
    words += ["--load", record.load.name] if record.load.name != "prompts" else []
    if record.kind == "diff-backends":
        words += ["--patches", first.patches]
    else:
        words += ["--base", first.patches, "--with", last.patches]
    words += [word for fault in last.faults for word in ("--fault", fault)]
    words += ["--backend", ",".join(dict.fromkeys(side.backend for side in record.sides))]
    words += ["--mtp", ",".join(dict.fromkeys("on" if side.mtp else "off" for side in record.sides))]
    words += ["--probes", first.probes] if first.probes else []
    words += ["--device-model", first.device_model] if first.device_model else []
    return shlex.join(words)
