"""An allocator and its pool differ in size."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule
from gemma4_triage.diagnose.start_up import POOL_SIZE, sides_agree, start_up_evidence, start_up_summaries
from gemma4_triage.finding import Confidence, Finding

ID = "pool-size-differs"


def find(incident: Incident) -> Finding | None:
    found = [POOL_SIZE.match(summary) for summary in start_up_summaries(incident, "geometry_mismatch")]
    sizes = [tuple(int(number) for number in match.groups()) for match in found if match]
    if not sizes:
        return _since_the_start(incident)
    beyond = any(said > buffers for said, buffers, _ in sizes)
    a_page = all(abs(said - buffers) == page for said, buffers, page in sizes)
    return Finding(
        rule=ID,
        structure=Structure.POOL_SIZE,
        defect=Defect.OFF_BY_ONE if a_page else Defect.OTHER_SPACE,
        cause="An allocator believes its pool to have another number of pages than there are buffers for: "
        + ("the last ones that it hands out lead beyond them." if beyond else "the rest of them is never handed out."),
        confidence=Confidence.CERTAIN,
        evidence=start_up_evidence(
            incident,
            "geometry_mismatch",
            lambda summary: bool(POOL_SIZE.match(summary)),
            "slots that the allocator has",
        ),
        advice=("Look at what sets the sizes of the pools and of their allocators.",),
        next_commands=(commands.serve(incident, "--debug trap", "--probes geometry"), commands.DOCTOR),
    )


def _since_the_start(incident: Incident) -> Finding | None:
    """Return a finding of an audit whose pool is said to have more or fewer tokens than its pages are."""
    if (shrunk := incident.first(rule="swa-free-range", verdict="free_out_of_range")) is not None:
        return _shrunk(incident, shrunk)
    dump = incident.first(rule=LEAK)
    page = None if dump is None else dump.manifest.page_size
    if dump is None or not page:
        return None
    for pool in ("full", "swa"):
        total, pages = dump.manifest.scalars.get(f"{pool}_total"), dump.manifest.extents.get(f"pages_{pool}_pool")
        if not isinstance(total, int) or not pages or abs(total - pages * page) < page:
            continue
        return Finding(
            rule=ID,
            structure=Structure.POOL_SIZE,
            defect=Defect.OFF_BY_ONE if abs(total - pages * page) == page else None,
            cause=f"The {pool} pool is said to have {total} tokens, and its pages are {pages} of {page}: its size was "
            "changed after the start, so that what it is held against does not add up.",
            confidence=Confidence.CERTAIN,
            evidence=(
                said(dump, f"scalars.{pool}_total", "the tokens that the allocator says it has"),
                said(dump, f"extents.pages_{pool}_pool", "its pages"),
                said(dump, "page_size", "the tokens of each"),
            ),
            advice=("Look at what sets the sizes of the pools and of their allocators.",),
            next_commands=(commands.audit(dump),),
        )
    return None


def _shrunk(incident: Incident, dump: Dump) -> Finding | None:
    """Return a finding where slots past the end are freed that the mapping has whole pages for: they were handed out.

    As they were, the end was looked at, too, and lay behind them.
    """
    mapping, page = tensor_or_none(dump, "start_mapping"), dump.manifest.page_size or 1
    end, bad = dump.manifest.extents.get("slots_full_pool"), dump.manifest.offences
    if mapping is None or mapping.shape[1] != 2 or not end or not bad or not end <= bad[0].value < end + 4 * page:
        return None
    beyond = {int(full): int(swa) for full, swa in mapping.tolist() if full >= end}
    pages = {full // page: swa // page for full, swa in beyond.items() if swa > 0}
    whole = all(beyond.get(at * page + one) == swa * page + one for at, swa in pages.items() for one in range(page))
    if bad[0].value // page not in pages or not whole or len(set(pages.values())) != len(pages):
        return None
    more = max(pages) + 1 - end // page
    return Finding(
        rule=ID,
        structure=Structure.POOL_SIZE,
        defect=Defect.OFF_BY_ONE if more == 1 else None,
        cause=f"The full pool's allocator says that its slots end before {end}, and pages up to slot "
        f"{(max(pages) + 1) * page - 1} were handed out with pages of the sliding window: its size (size_full, size) "
        f"has become {'a page' if more == 1 else f'{more} pages'} too small since.",
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "offences.0.value", "a slot that is given back"),
            said(dump, "extents.slots_full_pool", "where the allocator says that its slots end"),
            said(dump, "scalars.call_site", "who gives it back"),
        ),
        advice=("Look at what writes the allocator's sizes after its start (size, _size_full), as a resize does.",),
        next_commands=(
            commands.show(dump),
            commands.serve(incident, "--debug trap", "--probes geometry,swa-allocator"),
        ),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the allocator and the buffers have the same number of slots", sides_agree),),
    explains=("page-past-pool-end", "index-outside-buffer", "allocator-past-pool-end"),
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
)
