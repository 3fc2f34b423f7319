"""Puts what a comparison of live runs found in sentences, for its record."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_dumps.wording import number_of
from gemma4_repro.parity.compare_tracks import TokenDifference
from gemma4_repro.parity.judge import TRANSFORMERS, Agreement, Cause, Column, SideVerdict
from gemma4_repro.parity.load import hides_prompts
from gemma4_repro.parity.pressure import Death, below_pressure
from gemma4_repro.parity.runner import ArmRun, LiveRun
from gemma4_repro.parity.window_evidence import SLIDING, KeysSeen, WindowCause
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.standing import releases_of

_PHASES = {"EXTEND": "prefill", "DECODE": "decode", "TARGET_VERIFY": "verify"}


def phase(mode: str) -> str:
    """Say what a user calls a forward mode."""
    return _PHASES.get(mode, mode.lower() or "unknown")


def layer_kind(layer_type: str) -> str:
    """`sliding_attention` -> `sliding`."""
    return layer_type.removesuffix("_attention")


def cause_sentence(verdict: SideVerdict, cause: Cause) -> str:
    """Say where a side parts from its reference, why as far as an experiment shows it, and which fix it takes."""
    place = cause.place
    prompts = ", ".join(str(prompt) for prompt in cause.prompts)
    where = (
        f"prompt {cause.prompt}, position {place.position} ({phase(place.mode)}), layer {place.layer} "
        f"({layer_kind(cause.layer_type)}) is the first that differs from {verdict.reference}, "
        f"by {place.difference:.1g} there and {place.largest:.1g} in later layers"
    )
    also = f" Prompts with the same: {prompts}." if len(cause.prompts) > 1 else ""
    if cause.window is None:
        faults = verdict.arm.side.faults
        why = f"injected on this side: {', '.join(faults)}" if faults else "the cause is not known"
        widths = (
            "No other width of the sliding window gives these states"
            if cause.widths_tried
            else "Other widths of the sliding window are not tried with this load"
        )
        return f"{where}. {widths}; {why}.{also}"
    return f"{where}. {_window(verdict, cause, cause.window)}{also}"


def token_sentence(prompt: int, token: TokenDifference, reference: str) -> str:
    """Return a first different token, with what the reference thought of both."""
    tie = "a near-tie, which round-off may decide" if token.near_tie else "no near-tie"
    return (
        f"prompt {prompt}, output {token.output_index}: {reference} says {token.reference_token} "
        f"(logprob {token.reference_logprob:.6f}), this says {token.other_token} ({token.other_logprob:.6f} there): "
        f"{token.gap:.2g} apart, {tie}"
    )


def crash_hint(verdict: SideVerdict) -> str | None:
    """Say which default fixes are off, for a side that ended early without one."""
    if verdict.completed:
        return None
    attached = verdict.arm.side.attached
    # What the release has itself, or cannot have, is not off.
    fixes = [patch for patch in CATALOG if patch.kind is Kind.FIX and installed_or_base() in releases_of(patch)]
    off = [patch.id for patch in fixes if patch.default and patch.id not in attached]
    if not off:
        return None
    return f"fixes of the default set that were off here: {', '.join(off)}"


def summary_sentences(agreement: Agreement) -> list[str]:
    """Say in the first sentence which sides die and which do not, under which load; then how each died.

    Empty for a load that is not there to put anything under pressure, if every side came to its end.
    """
    dead = [column for column in agreement.columns if column.death]
    alive = [column for column in agreement.columns if not column.death]
    run = agreement.run
    load = f"load {run.load_name}, {number_of(len(run.oracle.tracks), 'request')}"
    sentences = []
    if dead:
        trapped = [column for column in dead if column.death and column.death.trapped]
        died = [column for column in dead if column not in trapped]
        parts = [(died, "dies", "die"), (trapped, "is trapped", "are trapped"), (alive, "lives", "live")]
        said = "; ".join(f"{_each(c)} {one if len(c) == 1 else many}" for c, one, many in parts if c)
        sentences.append(f"{said} ({load}; in brackets: the most of the SWA pool that was in use at once).")
    elif run.swa_above is not None:
        sentences.append(f"Every side answers all requests ({load}): {_each(alive)} of the SWA pool in use at once.")
    sentences += [_death_sentence(column, len(run.oracle.tracks)) for column in dead]
    below = below_pressure(run)
    if below and run.swa_above is not None:
        sides = ", ".join(f"{arm.side.id} ({arm.usage.swa_peak:.0%})" for arm in below)
        sentences.append(f"NOT under pressure, which begins above {run.swa_above:.0%} of the SWA pool: {sides}.")
    return sentences


def _each(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.arm.side.id} ({column.arm.usage.swa_peak:.0%})" for column in columns)


def _death_sentence(column: Column, requests: int) -> str:
    death = column.death
    assert death is not None, "the side came to its end"
    said = f"{column.arm.side.id}: {_what_ended(column.arm, death)}"
    step = death.step
    if step is None:
        return f"{said}, before any step."
    said += f", {'after' if step.ended else 'in'} step {step.number} ({phase(step.mode)}"
    said += f" of prompts {', '.join(map(str, sorted(step.slots)))})" if step.slots else ")"
    said += f", when {death.finished} of {number_of(requests, 'request')} had been answered"
    if death.finished_agree is not None:
        said += ", as transformers answers them" if death.finished_agree else ", NOT as transformers answers them"
    if death.swa is not None and death.full is not None:
        said += f"; in use: SWA pool {death.swa:.0%}, full pool {death.full:.0%}"
    if death.prompts:
        said += f"; bad pages are listed in the rows of prompts {', '.join(map(str, death.prompts))}"
    if death.dumps:
        said += f"; dump of that step: {', '.join(entry.dump_id for entry in death.dumps)}"
    return f"{said}."


def _what_ended(arm: ArmRun, death: Death) -> str:
    if death.raised is None:
        return arm.outcome.problem or arm.outcome.ending.value
    message = f" ({death.raised.message})" if death.raised.message else ""
    return f"{'trapped by' if death.trapped else 'died of'} {death.raised.type_name}{message}"


def prompts_left_out(run: LiveRun) -> str:
    """Say why only the answers' logprobs were compared."""
    patches = ", ".join(hides_prompts(run.compared))
    return (
        f"Logprobs of prompts, but for their last token, were left out on every side: asked for them, {patches} would "
        "step aside, and it is what is compared."
    )


def nothing_checked(agreement: Agreement) -> str:
    """Say why the exit code is 5."""
    if below_pressure(agreement.run):
        return "the load did not fill the SWA pool as it is there to, so that the sides agree says nothing of pressure"
    if all(column.gate is column.oracle for column in agreement.columns):
        return "no side came to what the injected fault changes, so that they agree says nothing of it"
    if any(column.gate is None and column.arm.tracks for column in agreement.columns):
        return "the patches in which the sides differ never did their work, so that they agree says nothing of them"
    return "no base run came to its end, so there was nothing to compare with"


def fixes_named(verdicts: Sequence[SideVerdict]) -> list[str]:
    """Return the fixes that would repair a side, each once; not those that a base lacks."""
    windows = [cause.window for verdict in verdicts for cause in verdict.causes if cause.window]
    return list(dict.fromkeys(w.fix for w in windows if w.fix and w.other.keys != w.window))


def _window(verdict: SideVerdict, cause: Cause, window: WindowCause) -> str:
    reference_is_wrong = window.other.keys == window.window
    wrong = window.reference if reference_is_wrong else window.other
    seen = f"Its sliding layers saw {window.other.keys} keys"
    if verdict.reference != TRANSFORMERS:
        seen += f", those of {verdict.reference} {window.reference.keys}; the window holds {window.window}: "
    else:
        seen += f" where the window holds {window.window}: "
    seen += _experiment(wrong)
    # With that many keys or more the sequence is cut; with one token more than either, the two widths differ.
    if cause.place.position == min(wrong.keys, window.window):
        seen += f". It begins where it must: the sequence holds {cause.place.position + 1} tokens"
    if window.fix is None:
        return f"{seen}. No fix of this project is for that."
    if reference_is_wrong:
        return f"{seen}. So it is {verdict.reference} that is off, for want of {window.fix}."
    if window.fix in verdict.arm.side.attached:
        return f"{seen}. Fix {window.fix} is on and does not help."
    return f"{seen}. Fix: {window.fix}."


def _experiment(seen: KeysSeen) -> str:
    return (
        f"transformers with {seen.keys} keys on its {layer_kind(SLIDING)} layers at this position, and on no other, "
        f"gives these states in every layer (to {seen.left:.0e})"
    )
