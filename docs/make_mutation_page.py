"""Makes the measured part of docs/mutations.md of the committed rows of `repro mutations`; runs nothing.

.venv/bin/python docs/make_mutation_page.py
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemma4_dumps.wording import number_of
from gemma4_repro.mutations.draw import draw
from gemma4_repro.mutations.load import Probes
from gemma4_repro.mutations.matrix import Counts, Matrix, matrix
from gemma4_repro.mutations.rows_file import RowsFile
from gemma4_repro.mutations.score import Noticed, State

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "mutations"
"""A folder for each run, named by its seed."""
PAGE = ROOT / "docs" / "mutations.md"
RUNS = {2411: 48, 2412: 16, 2413: 32, 2414: 32, 2415: 24, 2417: 48, 2420: 48, 2421: 60, 2803: 25, 2900: 500}
RUNS |= {2701: 40, 2702: 60, 2801: 40, 2802: 40, 3000: 25, 3104: 24, 3201: 60, 3301: 500, 3407: 500, 3511: 500}
RUNS |= {
    3607: 100,
    3701: 500,
    3801: 500,
    3901: 500,
    4001: 100,
    4003: 80,
    4007: 80,
    4009: 60,
    4011: 60,
    4013: 60,
    4107: 120,
    4301: 262,
    4402: 500,
    4603: 500,
    4811: 500,
    5021: 500,
    6021: 500,
    7129: 500,
    8203: 240,
}
"""How many mutations each seed's run has, by release and in the order in which they were run."""
SHOWN = (2900, 7129, 4013)
"""The seeds whose runs are shown by server, structure, defect and phase; of the others what they came to."""
MACHINES = {2900: "on 16 cores, 15 engines side by side, the last 15 mutations on 2 cores"}
"""Where a run was not on this project's usual machine."""
_OF_EFFECTS = ("noticed_by_sglang", "tokens_changed")
_COLUMNS = ("drawn", "judged", "seen", "right", "partly", "unknown", "wrong", "certain_and_wrong", *_OF_EFFECTS)
_HEADS = (
    "drawn",
    "judged",
    "seen",
    "right",
    "partly",
    "unknown",
    "wrong",
    "certain, wrong",
    "SGLang saw",
    "other tokens",
)
_FALLEN = 0.9
"""Of the accept length of a clean load: what is below is a fall."""


def measured(seed: int) -> Matrix:
    """Return the matrix of a committed run. Rows that today's draw of the seed does not have are left out."""
    file = RowsFile(FOLDER / str(seed), seed)
    file.read()
    drawn = draw(seed, RUNS[seed], file.sglang_version)
    rows = [row for one in drawn if (row := file.rows.get(one.number)) is not None and row.mutation == one]
    return matrix(
        seed, RUNS[seed], rows, tuple(file.clean.values()), file.sglang_version, probes=file.probes or Probes.TRAP
    )


def page(text: str) -> str:
    """Return the page with its measured parts made anew: a line of each run, and the whole of those in SHOWN."""
    parts: dict[str, Iterator[str]] = {"all draws": _overview()}
    parts |= {f"seed {seed}": _lines(measured(seed)) for seed in SHOWN}
    for name, lines in parts.items():
        begin, end = f"<!-- measured: {name}, docs/make_mutation_page.py -->\n", f"<!-- end of {name} -->\n"
        if not (0 <= text.find(begin) < text.find(end)):
            raise ValueError(f"{PAGE.name} has no part that begins with {begin.strip()} and ends with {end.strip()}")
        before, _, rest = text.partition(begin)
        text = "".join((before, begin, *(f"{line}\n" for line in lines), end, rest.partition(end)[2]))
    return text


def _overview() -> Iterator[str]:
    heads = (
        "seed",
        "SGLang",
        "probes",
        "judged",
        "unseen",
        "right",
        "wrong",
        "certain, wrong",
        "owner",
        "likely",
        "met",
    )
    yield from _table(heads, (_line(measured(seed)) for seed in RUNS))


def _line(whole: Matrix) -> tuple[str, ...]:
    total = whole.total
    owners = total.owner_right + total.owner_wrong
    likely = next((one for one in whole.reliability if one.confidence == "likely"), None)
    judged = [aim.met for aim in whole.aims if aim.met is not None]
    return (
        f"[{whole.seed}](mutations/{whole.seed}/mutations.jsonl)",
        whole.sglang_version,
        whole.probes.value,
        str(total.judged),
        str(total.judged - total.seen),
        f"{total.right / total.judged:.0%}",
        f"{total.wrong / total.judged:.1%}",
        str(total.certain_and_wrong),
        f"{total.owner_right} of {owners}" if owners else "",
        f"{likely.right} of {likely.named}" if likely is not None and likely.named else "",
        "all" if all(judged) else f"{sum(judged)} of {len(judged)}",
    )


def _lines(whole: Matrix) -> Iterator[str]:
    total = whole.total
    unseen = total.judged - total.seen
    about = (
        f"Seed {whole.seed}, {number_of(len(whole.rows), 'mutation')} of {whole.count}, SGLang {whole.sglang_version}, "
        f"{'probes in contain, ' if whole.probes is Probes.CONTAIN else ''}"
        f"{MACHINES.get(whole.seed, 'on 2 cores that had other work')}; engines together {whole.engine_s / 60:.0f} "
        f"minutes. {total.judged} are "
        f"judged: {total.inert} {'was' if total.inert == 1 else 'were'} inert (overwritten before anybody read it) and "
        f"{total.never_acted} never acted. "
        + (
            "All were seen."
            if not unseen
            else f"Of {unseen} that nobody saw, {total.silent} left no mark without probes either."
            if any(row.effect is not None for row in whole.rows)
            else f"Nobody saw {unseen} of them; what they do without probes was not asked."
        )
    )
    yield from textwrap.wrap(about, 120)
    yield ""
    # Of runs without probes alone.
    asked = any(row.effect is not None for row in whole.rows)
    known = len(_COLUMNS) if asked else len(_COLUMNS) - len(_OF_EFFECTS)
    if asked:
        yield from textwrap.wrap(_effects(whole), 120)
        yield ""
    heads = _HEADS[:known]
    yield from _table(("aim", "found", ""), ((aim.text, aim.found, _met(aim.met)) for aim in whole.aims))
    if len({row.mutation.server for row in whole.rows}) > 1:
        yield ""
        yield from _table(("server", *heads), (_counted(one, known) for one in (*whole.by_server, total)))
    for title, counts in (("structure", whole.by_structure), ("defect", whole.by_defect), ("phase", whole.by_phase)):
        yield ""
        yield from _table((title, *heads), (_counted(one, known) for one in (*counts, total)))
    yield ""
    reliability = (
        (one.confidence, *map(str, (one.named, one.right, one.partly, one.unknown, one.wrong)))
        for one in whole.reliability
    )
    yield from _table(("said to be", "named", "right", "partly", "unknown", "wrong"), reliability)


def _effects(whole: Matrix) -> str:
    """Return what the same mutations did without probes."""
    rows = [row for row in whole.rows if row.state is State.ACTED and row.effect is not None]
    noticed = Counter(row.effect.noticed for row in rows if row.effect is not None)
    quiet = [row for row in rows if row.effect is not None and row.effect.noticed is Noticed.NOTHING]
    clean = {(one.mtp, one.server): one.accept_length for one in whole.clean}
    lengths = [
        (row.effect.accept_length, usual)
        for row in quiet
        if row.effect is not None
        and row.effect.accept_length is not None
        and (usual := clean.get((row.mutation.mtp, row.mutation.server))) is not None
    ]
    fell = sum(length < _FALLEN * usual for length, usual in lengths)
    changed = sum(row.effect is not None and row.effect.tokens_changed is True for row in quiet)
    return (
        f"Without probes, SGLang itself noticed {len(rows) - len(quiet)} of {len(rows)}: its checker of the pools "
        f"{noticed[Noticed.CHECKER]}, a crash {noticed[Noticed.CRASH]}, a hang {noticed[Noticed.HANG]}. Of the other "
        f"{len(quiet)}, {changed} answered with other tokens, and of {len(lengths)} with MTP {fell} accepted less than "
        f"{_FALLEN:.0%} of what a clean load accepts at once."
    )


def _met(met: bool | None) -> str:
    return {True: "met", False: "not met", None: "nothing to judge"}[met]


def _counted(counts: Counts, known: int) -> tuple[str, ...]:
    return (counts.name, *(str(getattr(counts, name) or "") for name in _COLUMNS[:known]))


def _table(heads: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Wrote {PAGE}")
