"""From what a check found to violations, their dumps, and the end (contain) or the mark (clamp) of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

from gemma4_kernels.page_guard.findings import Findings, Offence, Overflow
from gemma4_runtime import current
from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation
from gemma4_runtime.degraded import DEGRADED
from gemma4_runtime.indices.build import Build, Use
from gemma4_runtime.indices.draft import bounds_draft, wrong_space_draft
from gemma4_runtime.settings import Mode
from gemma4_runtime.steps import concerned, fail_requests

RULE = "page-table-bounds"


def report_findings(
    build: Build, names: tuple[str, ...], findings: Findings, act: Mode, and_next: bool = False
) -> None:
    """Report what page_guard found: one violation per array, with the first bad entry of each row.

    If `and_next` is set, the step after the one that is being read may have found it, see `fail_requests`.

    Raises:
        TrappedViolation: in trap mode; in contain mode if the requests cannot be ended one by one.
    """
    for index, name in enumerate(names):
        bad = _of_array(index, findings.offences)
        if bad:
            use = _culprit(build, name, bad[0].value)
            violation = Violation(_verdict(use, bad[0]), bad[:MAX_LISTED], findings.counts[index])
            counts = {o.row: o.row_count for o in findings.offences if o.array == index}
            _report(build, use, violation, act, counts, "contained", and_next)
        wide = _of_array(index, findings.overflows)
        if wide:
            use = build.uses_of(name)[0]
            violation = Violation("table_too_narrow", wide[:MAX_LISTED], len(wide))
            _report(build, use, violation, act, dict.fromkeys(findings.rows, 0), "logged", and_next)


def report_wrong_space(build: Build, use: Use, act: Mode, with_rows: bool) -> None:
    """Report that ids of one pool are about to index another pool's buffer.

    In contain mode nothing is neutralised, since the ids may all be in range. What a draft proposes the target
    verifies, so a draft's requests go on; a target's are ended. With `clamp` likewise, and a target's are marked.

    Raises:
        TrappedViolation: as `report_findings`.
    """
    violation = Violation("wrong_space", (BadIndex(0, 0, 0, 0, use.bound),), build.rows if with_rows else 0)
    describe = partial(wrong_space_draft, build, use, violation, RULE, with_rows)
    said = f"{use.array} holds another pool's ids for layer {use.layer_id}"
    # A capture meets it once per bucket.
    key, once = (*_key(build, use), with_rows), not with_rows
    if act is Mode.CLAMP:
        if current.guard().mode is Mode.LOG:
            current.guard().report(violation, RULE, build.site, describe, Mode.LOG, key=key, once=once)
        if build.role == "target":
            _degrade(build, dict.fromkeys(range(build.rows), 0), said)
        return
    dump = current.guard().report(violation, RULE, build.site, describe, act, key=key, once=once)
    if act is Mode.CONTAIN and build.role == "target":
        fail_requests(_requests(build, range(build.rows)), said, dump)


def _report(
    build: Build,
    use: Use,
    violation: Violation,
    act: Mode,
    rows: Mapping[int, int],
    action: Literal["logged", "contained"],
    and_next: bool,
) -> None:
    """Report one violation.

    `rows` are those whose requests contain mode ends and clamp marks, to the entries that were bad; `action` is what
    was done to them. A row beyond its table cannot be undone.
    """
    describe = partial(bounds_draft, build, use, violation, RULE)
    value, layer = violation.first.value, f"{build.role} layer {use.layer_id}"
    said = f"{violation.verdict}, value {value} in {use.array} for {layer}"
    if act is Mode.CLAMP:
        if current.guard().mode is Mode.LOG:
            current.guard().report(violation, RULE, build.site, describe, Mode.LOG, action, key=_key(build, use))
        _degrade(build, rows, said, and_next)
        return
    done = action if act is Mode.CONTAIN else None
    dump = current.guard().report(violation, RULE, build.site, describe, act, done, key=_key(build, use))
    if act is Mode.CONTAIN:
        fail_requests(_requests(build, rows), said, dump, and_next)


def _degrade(build: Build, rows: Mapping[int, int], said: str, and_next: bool = False) -> None:
    """Mark the requests of these rows, whose values say how many entries were replaced."""
    entries: Counter[int] = Counter()
    for row, count in rows.items():
        entries[row // build.rows_per_request] += count
    DEGRADED.mark(concerned(tuple(entries), and_next), entries, build.role, said)


def _key(build: Build, use: Use) -> tuple[Any, ...]:
    return (build.role, use.layer_id, use.array, build.in_graph)


def _requests(build: Build, rows: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({row // build.rows_per_request for row in rows}))


def _of_array(index: int, found: Iterable[Offence | Overflow]) -> tuple[BadIndex, ...]:
    return tuple(BadIndex(bad.row, bad.column, bad.value, bad.lower, bad.upper) for bad in found if bad.array == index)


def _culprit(build: Build, name: str, value: int) -> Use:
    """Return the use of an array that `value` harms: the first whose bound it breaks."""
    uses = build.uses_of(name)
    return next((use for use in uses if use.buffer_space is not None and value >= use.bound), uses[0])


def _verdict(use: Use, bad: BadIndex) -> str:
    if 0 <= bad.value < bad.upper:
        return "null_page_live"
    if use.writes:
        return "write_out_of_range"
    return "negative" if bad.value < 0 else "out_of_range"
