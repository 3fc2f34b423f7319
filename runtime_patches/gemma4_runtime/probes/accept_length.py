"""Probe `accept-length`: drafts are accepted far less than they were, or hardly ever: they may read other keys.

Pages that are in range and wrong change no answer: the target verifies every token, and only speed is lost. The
requests' own counters show it. A change of the text does too, so a fall is an event and no violation: the dump is
written once, and in no mode is anything stopped. What is wrong from the start has nothing to fall from: it is an event
of its own that of the first verifications hardly one accepted a draft. Steps without drafts are left out.

Host only: two numbers of each request, after the results of a step have been processed.
"""

from __future__ import annotations

from typing import Any

import torch

from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.schema import Provenance
from gemma4_runtime import current
from gemma4_runtime.by_identity import ByIdentity
from gemma4_runtime.checks.accept_length import BEFORE, FIRST, RECENT, AcceptHistory, Fall
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.evidence import payload
from gemma4_runtime.release.requests import held
from gemma4_runtime.settings import Mode
from gemma4_runtime.steps import step_number

RULE, VERDICT, NEVER = "accept-length", "accept_length_fell", "no_draft_accepted"
SAMPLE_COLUMNS = ("step", "request_slot", "drafts_accepted")
_SITE = "process_batch_result_decode"
_WITHOUT_DRAFTS = 1
"""`speculative_num_draft_tokens` of a step that verifies nothing but the token that it starts from."""

_HISTORIES: ByIdentity[AcceptHistory] = ByIdentity()
_COUNTED = "_gemma4_triage_drafts"
"""A request's verifications and drafts accepted, as they were after the step before."""


def after_process_decode(_: None, processor: Any, batch: Any, result: Any = None, *args: Any, **kwargs: Any) -> None:
    """Run after the results of a decode have been processed."""
    # Most servers verify nothing, and this runs in each step.
    step = step_number() or 0
    samples = [sample for request in batch.reqs if request.spec_verify_ct for sample in _fresh(request, step)]
    if not samples or getattr(result, "speculative_num_draft_tokens", None) == _WITHOUT_DRAFTS:
        return
    # The processor has no room for a weak reference; its table of rows is as much its server's.
    rows = batch.req_to_token_pool
    fall = (_HISTORIES.get(rows) or _HISTORIES.put(rows, AcceptHistory())).add(samples)
    if fall is not None:
        violation = Violation(VERDICT if fall.before is not None else NEVER, (), 0)
        current.guard().report(violation, RULE, _SITE, lambda: _draft(fall, batch), act=Mode.LOG, once=True)


def _fresh(request: Any, step: int) -> list[tuple[int, int, int]]:
    """Return what a request's verifications since the last look have come to, the mean of them where several."""
    verified, accepted = request.spec_verify_ct, request.spec_num_correct_drafts
    before, accepted_before = getattr(request, _COUNTED, (0, 0))
    count, drafts = verified - before, accepted - accepted_before
    setattr(request, _COUNTED, (verified, accepted))
    # Less than before: the request was retracted, and counts anew.
    if count <= 0:
        return []
    # A request that has ended has given its row back.
    slot = held(request).req_pool_idx
    return [(step, -1 if slot is None else slot, drafts // count)] * count


def _draft(fall: Fall, batch: Any) -> DumpDraft:
    if fall.before is None:
        summary = f"a verification accepted {fall.recent:.3f} drafts on average of the first {fall.verified_before}"
        scalars = {"accepted": round(fall.recent, 3), "verified": fall.verified_before}
    else:
        summary = f"a verification accepts {fall.recent:.2f} drafts on average of the last {RECENT}, and "
        summary += f"{fall.before:.2f} before"
        scalars = {
            "accepted_before": round(fall.before, 3),
            "verified_before": fall.verified_before,
            "accepted_recently": round(fall.recent, 3),
            "verified_recently": len(fall.samples),
        }
    return DumpDraft(
        rule=RULE,
        site=_SITE,
        summary=summary,
        verdict=NEVER if fall.before is None else VERDICT,
        provenance=Provenance(explanation=summary),
        role="draft",
        forward_mode=getattr(batch.forward_mode, "name", None),
        step=step_number(),
        scalars={**scalars, "columns": ",".join(SAMPLE_COLUMNS)},
        tensors={"recent": payload(torch.tensor(fall.samples, dtype=torch.int64))},
    )


def self_test() -> None:
    """See a planted fall and drafts that are never accepted, and nothing where nothing changes.

    Raises:
        VerificationFailed: either is missed.
    """
    steady, falling = AcceptHistory(), AcceptHistory()
    length = BEFORE + RECENT
    found = steady.add([(at, 1, 3) for at in range(2 * length)]), falling.add([(at, 1, 3) for at in range(length)])
    fall = falling.add([(at, 1, 0) for at in range(RECENT)])
    never = AcceptHistory().add([(at, 1, 0) for at in range(FIRST)])
    if found != (None, None) or fall is None or never is None:
        raise VerificationFailed(f"{RULE}: self test: {found}, {fall}, {never}")
