"""A request is released that holds no row any more: its pages were given back before."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "request-released-twice"
_SITE, _REFUSAL = ".release_kv_cache", "freeing before alloc"
_LAUNCHED = "req_pool_indices"
_REQUESTS, _SLOT, _COMMITTED, _ALLOCATED = "requests", 0, 2, 3


def find(incident: Incident) -> Finding | None:
    """Return a finding where SGLang refused to release a request of the batch that had keys and has no row."""
    for dump in incident.of(rule=PROCESS_END):
        refused = dump.manifest.site.endswith(_SITE) and _REFUSAL in str(dump.manifest.scalars.get("message"))
        if refused and (rows := _released(dump)):
            return _finding(incident, dump, rows)
    return None


def _released(dump: Dump) -> list[int]:
    """Return the rows of the batch whose requests have no row and no slots, and had some: what a release leaves."""
    requests = tensor_or_none(dump, _REQUESTS)
    if requests is None or requests.ndim != 2 or requests.shape[1] <= _ALLOCATED:
        return []
    gone = (requests[:, _SLOT] < 0) & (requests[:, _ALLOCATED] == 0) & (requests[:, _COMMITTED] > 0)
    return [int(row) for row in gone.nonzero()[0]]


def _finding(incident: Incident, dump: Dump, rows: list[int]) -> Finding:
    frames = str(dump.manifest.scalars.get("traceback"))
    of_result = dump.manifest.scalars.get("stage") == "process_batch_result"
    late = of_result and "event_loop_overlap" in frames
    cause = (
        "A request is released a second time: it had keys and values, and holds no row and no slots any more, as a "
        "release leaves it."
    )
    if late:
        cause += (
            " With overlap its next step was launched before it had ended: that step's result was processed as if the "
            "request went on, where it has to be left out."
        )
    launched = tensor_or_none(dump, _LAUNCHED) if late else None
    return Finding(
        rule=ID,
        structure=Structure.FREE_CALL,
        defect=Defect.DUPLICATE,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.message", "what SGLang refused"),
            *(
                cell(dump, _REQUESTS, (row, _COMMITTED), "tokens with keys that a request without a row had")
                for row in rows
            ),
            *(
                cell(dump, _LAUNCHED, (row,), "its row as the step was launched")
                for row in rows
                if launched is not None and launched.ndim == 1 and row < len(launched)
            ),
            said(dump, "scalars.stage", "what the scheduler's loop was doing"),
            said(dump, "scalars.traceback", "who released it now"),
        ),
        advice=(
            "Look at what passes over finished and retracted requests in process_batch_result_decode and _prefill."
            if late
            else "Look at what released it before: the end of a request, abort_request, a retraction (release_req).",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("something cleared the row and the counts of a request that was not released"),),
    leads_to=("other-crash",),
)
