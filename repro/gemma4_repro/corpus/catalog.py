"""The runs of the corpus, chosen by id. Its records stand in faults.py, clean.py and logit.py."""

from __future__ import annotations

from gemma4_dumps.wording import names_near
from gemma4_repro.corpus.case import Case
from gemma4_repro.corpus.clean import CLEAN
from gemma4_repro.corpus.faults import FAULTS, LOGIT_FAULTS
from gemma4_repro.corpus.on_release import fitted, reason_absent
from gemma4_repro.errors import UnknownName
from gemma4_runtime.releases import BASE

CASES: tuple[Case, ...] = (*FAULTS, *CLEAN)


def absent_cases(release: str) -> dict[str, str]:
    """Return the ids of the cases that a release cannot have, and why.

    Args:
        release: Of SGLang.
    """
    reasons = {case.id: reason_absent(case, release) for case in (*CASES, *LOGIT_FAULTS)}
    return {name: reason for name, reason in reasons.items() if reason}


def choose_cases(wanted: tuple[str, ...], release: str = BASE) -> tuple[Case, ...]:
    """Return the named cases in the catalog's order, each once, as a release runs them.

    Args:
        wanted: Ids; none: all that the release can have.
        release: Of SGLang.

    Raises:
        UnknownName: The corpus has no such case, no run of it, or the release cannot have it.
    """
    absent = absent_cases(release)
    known = [case.id for case in CASES]
    gated = {case.id: case for case in LOGIT_FAULTS}
    for name in wanted:
        if name in gated and name not in absent:
            raise UnknownName(f"no probe sees {name!r}, so it is no run of the corpus", f"run: {gated[name].command}")
        if name not in known and name not in gated:
            raise UnknownName(
                f"the corpus has no case {name!r}",
                names_near(name, known, "gemma4-triage repro corpus --list shows all"),
            )
        if name in absent:
            there = [name for name in known if name not in absent]
            raise UnknownName(
                f"SGLang {release} cannot have the case {name!r}: {absent[name]}", f"it has: {', '.join(there)}"
            )
    chosen = (case for case in CASES if case.id not in absent and (not wanted or case.id in wanted))
    return tuple(fitted(case, release) for case in chosen)
