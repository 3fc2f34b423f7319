"""What else an incident tells of SWA pages to which the full-to-SWA mapping still leads: lost, evicted, another's."""

from gemma4_dumps.audit_findings import equations
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.census import FREE_AND_HELD, NOWHERE, first_census, lost_pages
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.lost_by_the_cache import freed_without
from gemma4_triage.finding import Evidence


def leads_to_pages_of_nobodys_free(incident: Incident) -> bool:
    """Return whether the mapping leads to SWA pages that are lost, or on the free list and nobody put them there."""
    census = first_census(incident)
    if census is None:
        return False
    pages = {one.page for one in census.of("swa", NOWHERE)}
    pages |= {one.page for one in census.of("swa", FREE_AND_HELD) if one.never_asked_back}
    return any(one.leads_to in pages for one in census.holders or ())


def led_to_lost_pages(incident: Incident) -> tuple[Evidence, ...]:
    """Return what an audit says of a mapping that leads to the lost pages: it is right, and follows from their loss."""
    led = incident.first(rule=LEAK, verdict="stale_mapping")
    if led is None or not leads_to_pages_of_nobodys_free(incident):
        return ()
    return (said(led, "offence_count", "full pages that the mapping leads from to what is lost"),)


def are_missing(audit: Dump) -> bool:
    """Return whether the sliding-window pool lacks just as many tokens as the pages have to which the mapping leads."""
    lacking = next((one.total - one.accounted for one in equations(audit) if one.pool == "swa"), 0)
    return lacking == (audit.manifest.offence_count or 1) * (audit.manifest.page_size or 1)


def evictions_left_pages(incident: Incident) -> bool:
    """Return whether an audit lost SWA pages that an eviction of the cache left out; their mapping is left as well."""
    audits = incident.of(rule=LEAK, verdict="pool_leak")
    return any(freed_without(dump, one, "evict_tree") is not None for dump in audits for one in lost_pages(dump))


def of_its_owner_before(incident: Incident, audit: Dump) -> bool:
    """Return whether another probe found something wrong with the last owner of such a page before the audit looked."""
    owners = {bad.request_slot for bad in audit.manifest.offences} - {None}
    earlier = incident.by_access[: incident.by_access.index(audit)]
    return any(
        bad.request_slot in owners for one in earlier if one.manifest.rule != LEAK for bad in one.manifest.offences
    )


def counted_as_gone(audit: Dump) -> tuple[Evidence, ...]:
    """Return what an audit has of the windows that requests count as gone; nothing in a release that counts none."""
    if audit.manifest.scalars.get("evicted") is None:
        return ()
    return (said(audit, "scalars.evicted", "tokens that each request counts as evicted, by slot"),)
