"""A batch that decodes has a length for a request that the request's own tokens contradict."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.copied_lengths import AT_ORDER, COPIED, in_order, miscounted, not_filtered, reordered
from gemma4_triage.diagnose.evidence import cell, event, readable_events, said, tensor_or_none
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "batch-length-wrong"
_LENGTHS, _REQUESTS, _TOKENS = "seq_lens", "requests", 1
COPIES = "swa-alloc-lengths"
"""The probe's rule of a length that differs from its copy: one of the two is wrong, whatever the requests say."""
_AHEAD = 16
"""Tokens by which the two may differ in a step: what is drafted, and what a step adds before the request knows it."""


def find(incident: Incident) -> Finding | None:
    """Return a finding where the state at an exception has such a length."""
    copies = incident.first(rule=COPIES)
    if copies is not None:
        return _of_copies(incident, copies)
    for dump in incident.of(rule=PROCESS_END):
        row = first_wrong_length(dump)
        if row is not None:
            return _finding(incident, dump, row)
    return None


def _of_copies(incident: Incident, dump: Dump) -> Finding:
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    near = bad is not None and abs(bad.value - bad.lower) == 1
    kept, before = not_filtered(dump)
    lengths = ", ".join(map(str, readable_events(dump)[before].get("seq_lens", ()))) if kept else ""
    which = f" The copy on the {kept} has those of the step before, with the requests that have left the batch: "
    which = f"{which}it was not filtered with them." if kept else ""
    other, by, counted = ("", 0, 0) if kept else miscounted(dump)
    if other:
        before, lengths = counted, ", ".join(map(str, readable_events(dump)[counted]["seq_lens"]))
        how = "it was not counted up" if by < 0 else "it was counted up twice"
        which = f" Each request has a token more than in the decode before: the copy on the {other} is wrong, {how}."
    order = None if kept or other else reordered(dump)
    if order is not None:
        which = in_order(order)
    told, one_off = bool(kept or other), Defect.OFF_BY_ONE if near else None
    defect = Defect.STALE if kept or by < 0 else one_off
    return Finding(
        rule=ID,
        structure=Structure.BATCH_LENGTHS,
        defect=defect if order is None else Defect.SWAPPED,
        cause=(
            "A batch has another length for a request on the host than on the device. Pages are counted by the one "
            f"and filled by the other, so that requests get each other's pages, or none.{which}"
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offences.0.value", "the host's copy"),
            said(dump, "offences.0.lower", "the device's"),
            said(dump, "offences.0.request_slot", "whose it is, by the page that it continues from"),
            said(dump, "site", "the call that was given both"),
            *((event(dump, before, "step", f"the decode before, with lengths {lengths}"),) if told else ()),
        ),
        advice=(
            f"Look at what writes {COPIED[other]} there: prepare_for_decode counts both copies up."
            if other
            else AT_ORDER
            if order is not None
            else "Look at what writes seq_lens and seq_lens_cpu, and at which of the two was left out or done twice.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _lengths(dump: Dump) -> tuple[list[int], list[int]] | None:
    """Return the batch's lengths and the requests' tokens; None where the dump does not have both for each."""
    lengths, requests = tensor_or_none(dump, _LENGTHS), tensor_or_none(dump, _REQUESTS)
    if lengths is None or requests is None or lengths.ndim != 1 or requests.ndim != 2 or len(lengths) != len(requests):
        return None
    return lengths.tolist(), requests[:, _TOKENS].tolist() if requests.shape[1] > _TOKENS else []


def first_wrong_length(dump: Dump) -> int | None:
    """Return the first row of a batch whose length its request's tokens contradict; None where none is known to be."""
    found = _lengths(dump)
    if found is None:
        return None
    pairs = enumerate(zip(*found, strict=False))
    return next((row for row, (length, tokens) in pairs if length < 1 or abs(length - tokens) > _AHEAD), None)


def _finding(incident: Incident, dump: Dump, row: int) -> Finding:
    return Finding(
        rule=ID,
        structure=Structure.BATCH_LENGTHS,
        defect=_defect(dump, row),
        cause=(
            "The batch has a length for a request that its own tokens contradict, so that pages were asked for and "
            "looked up for another length than the request has."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            cell(dump, _LENGTHS, (row,), "the length that the batch has"),
            cell(dump, _REQUESTS, (row, _TOKENS), "tokens of that request, prompt and answer"),
            cell(dump, _REQUESTS, (row, 0), "its request slot"),
            said(dump, "scalars.message", "what SGLang died of then"),
        ),
        advice=("Look at what writes seq_lens: prepare_for_decode, filter_batch, merge_batch, the verify of drafts.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _defect(dump: Dump, row: int) -> Defect | None:
    lengths, tokens = _lengths(dump) or ([], [])
    if lengths[row] < 1:
        return Defect.NEGATIVE if lengths[row] else Defect.ZERO
    others = [count for other, count in enumerate(tokens) if other != row]
    if any(abs(lengths[row] - count) <= 1 for count in others):
        return Defect.FOREIGN
    return Defect.PAST_END if lengths[row] > max(tokens) + _AHEAD else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the batch is no decode: a prefill in chunks has a part of its prompt",
            in_dump(lambda dump: dump.manifest.rule != COPIES and dump.manifest.forward_mode != "DECODE"),
        ),
        Exclusion(
            "the lengths are right, and the request's tokens were changed",
            in_dump(lambda dump: False if dump.manifest.rule == COPIES else None),
        ),
    ),
    leads_to=("other-crash", "index-outside-tensor"),
)
