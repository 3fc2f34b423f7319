"""Pages that were freed in place of others because the numbers of these were cut to some bits."""

from gemma4_dumps.audit_findings import suspects
from gemma4_dumps.errors import DumpError
from gemma4_triage.diagnose.census import FREE_AND_HELD, FREED_AGAIN, NOWHERE, TWICE_FREE
from gemma4_triage.diagnose.incident import LEAK, Incident

_BITS = (8, 16)
_FEWEST = 2


def cut_to(incident: Incident) -> str:
    """Return as a sentence that, step by step, the page that was lost is the one that was freed, cut; empty if not.

    One such pair may be chance.
    """
    lost: dict[tuple[str, int], set[int]] = {}
    freed: dict[tuple[str, int], set[int]] = {}
    sizes: set[int] = set()
    for dump in incident.of(rule=LEAK):
        try:
            listed = suspects(dump)
        except DumpError:
            return ""
        step = dump.manifest.step or 0
        sizes.add(dump.manifest.page_size or 1)
        for one in listed:
            if one.fault == NOWHERE:
                lost.setdefault((one.pool, step), set()).add(one.page)
            elif one.fault in (TWICE_FREE, FREED_AGAIN, FREE_AND_HELD) and one.free_step == step:
                freed.setdefault((one.pool, step), set()).add(one.page)
    steps = [place for place in lost if place in freed]
    if len(steps) < _FEWEST or len(sizes) != 1:
        return ""
    size = sizes.pop()
    for bits in _BITS:
        cut = [{page * size % (1 << bits) // size for page in lost[place]} == freed[place] for place in steps]
        if all(cut) and all(lost[place].isdisjoint(freed[place]) for place in steps):
            pages = " and ".join(f"{min(freed[place])} for {min(lost[place])}" for place in steps[:_FEWEST])
            return (
                "Pages were freed, free ones among them, and others were lost in the same steps: the slots of these, "
                f"cut to {bits} bits, are theirs ({pages})."
            )
    return ""
