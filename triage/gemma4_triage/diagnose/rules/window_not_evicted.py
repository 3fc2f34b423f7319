"""A running request keeps pages of the sliding-window pool long after its window has left them."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "window-not-evicted"
_KEPT, _ALL = "own_kept", "own_left"


def find(incident: Incident) -> Finding | None:
    """Return a finding where a request's count of what has left its window lags behind, and its slots are there."""
    dump = incident.first(rule=REQUEST_ROWS, verdict="window_kept")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    counted = scalars.get(_KEPT) == 0
    asked = (_KEPT, _ALL) if scalars.get(_KEPT) is not None else ()
    slot, value, expected = (scalars.get(name) for name in ("request_slot", "value", "expected"))
    lags = (
        f"The request in slot {slot} counts {value} tokens as gone from its sliding window, and {expected} have left it"
    )
    return Finding(
        rule=ID,
        structure=Structure.REQUEST_COUNTERS if counted else Structure.WINDOW_EVICTION,
        defect=None if counted else Defect.LOST,
        cause=f"{lags} and have no slots there any more: they were given back and not counted."
        if counted
        else f"{lags}: while it decodes nothing is given back of what its window leaves, so that requests hold "
        "more of the sliding-window pool than it was sized for, which then is full and retracts.",
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.value", "tokens that the request counts as gone"),
            said(dump, "scalars.expected", "tokens that have left it, in whole pages"),
            *(said(dump, f"scalars.{name}", f"of its own tokens among them {_MEANS[name]}") for name in asked),
            said(dump, "scalars.window", "tokens that the window keeps"),
            said(dump, "scalars.interval", "tokens after which SGLang gives back (SGLANG_SWA_EVICTION_INTERVAL)"),
            said(dump, "scalars.request_slot", "of which request"),
            said(dump, "offence_count", "requests of the batch of which that holds"),
        ),
        advice=(
            "Look at when a request's window is evicted in a decode: maybe_evict_swa, _swa_eviction_trigger, and what "
            "free_swa_out_of_window_slots sets.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes request-rows")),
    )


_MEANS = {_KEPT: "that have slots there still", _ALL: "in all"}


def _are_given_back(dump: Dump) -> bool | None:
    """Return None where the map was not asked, or part of the slots are there."""
    kept, all_of_them = (dump.manifest.scalars.get(name) for name in (_KEPT, _ALL))
    return False if kept is not None and kept in (0, all_of_them) else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("its pages were given back and not counted", in_dump(_are_given_back)),),
    leads_to=LOSES_PAGES,
)
