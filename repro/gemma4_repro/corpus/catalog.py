"""The runs of the corpus, chosen by id. Its records stand in faults.py, clean.py and logit.py."""

from __future__ import annotations

from gemma4_repro.corpus.case import Case
from gemma4_repro.corpus.clean import CLEAN
from gemma4_repro.corpus.faults import FAULTS
from gemma4_repro.corpus.logit import LOGIT_FAULTS
from gemma4_repro.errors import UnknownName

CASES: tuple[Case, ...] = (*FAULTS, *CLEAN)


def choose_cases(wanted: tuple[str, ...]) -> tuple[Case, ...]:
    """Return the named cases in the catalog's order, each once; all of them if none is named. Raises UnknownName."""
    known = [case.id for case in CASES]
    gated = {case.id: case for case in LOGIT_FAULTS}
    for name in wanted:
        if name in gated:
            raise UnknownName(f"no probe sees {name!r}, so it is no run of the corpus", f"run: {gated[name].command}")
        if name not in known:
            raise UnknownName(f"the corpus has no case {name!r}", f"its cases: {', '.join(known)}")
    return tuple(case for case in CASES if not wanted or case.id in wanted)
