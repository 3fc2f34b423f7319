"""Which cases a release of SGLang can have at all, and what of a case is left there.

A fault that has no place to act in, and one that the release's own code repairs, cannot be shown. Neither can a finding
whose probe is not ported. Both are named, so that a short matrix is not taken for a whole one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from gemma4_repro.corpus.case import Case, FaultCase, LogitFault
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.releases import BASE
from gemma4_runtime.standing import State, standing

_PATCHES = {patch.id: patch for patch in CATALOG}
_C = TypeVar("_C", bound=Case)


def reason_absent(case: Case | LogitFault, release: str) -> str:
    """Return why a release cannot have a case, as a clause; empty if it can.

    Args:
        case: Of the catalog.
        release: Of SGLang.
    """
    if not isinstance(case, FaultCase | LogitFault):
        return ""
    for name in case.inject:
        found = standing(_PATCHES[name], release)
        if found.state is not State.ATTACHES:
            return f"{'it' if name == case.id else name} is not ported: {found.why}"
    if isinstance(case, LogitFault):
        return ""
    # A fix that is not ported need not be left off: the release is without it.
    for name in case.without:
        found = standing(_PATCHES[name], release)
        if found.state is State.ABSORBED:
            return f"SGLang has what {name} repairs in order itself: {found.why}"
    for name in case.along:
        found = standing(_PATCHES[name], release)
        if found.state is State.NOT_PORTED:
            return f"{name}, which it is about, is not ported: {found.why}"
    if not _seen(case, release):
        return f"not ported is what sees it: {', '.join(case.probes)}"
    return ""


def fitted(case: _C, release: str) -> _C:
    """Return a case as a release runs it: the same object where nothing differs.

    Args:
        case: One that the release can have.
        release: Of SGLang.
    """
    if not isinstance(case, FaultCase):
        return case
    along, without = (
        tuple(name for name in names if standing(_PATCHES[name], release).state is State.ATTACHES)
        for names in (case.along, case.without)
    )
    findings = _seen(case, release)
    engine = {**case.engine, **(case.later_engine if release != BASE else {})}
    if (along, without, findings, engine) == (case.along, case.without, case.findings, case.engine):
        return case
    return replace(case, along=along, without=without, findings=findings, engine=engine)


def _seen(case: FaultCase, release: str) -> tuple:
    attached = {name for name in case.probes if standing(_PATCHES[name], release).state is State.ATTACHES}
    return tuple(finding for finding in case.findings if finding.probe in attached)
