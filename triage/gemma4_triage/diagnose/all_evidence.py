"""From everything that was read to incidents and what they come to: the one way for `diagnose` and `report`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gemma4_triage.diagnose.assign_logs import assign_logs
from gemma4_triage.diagnose.assign_readings import assign_readings
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.material import Material
from gemma4_triage.diagnose.plan import completed
from gemma4_triage.diagnose.rules import ended_without_saying_why
from gemma4_triage.finding import Finding, at_most, causes
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.readers import collection, py_spy, requests_file
from gemma4_triage.readers.reading import Reading


def incidents_of(material: Material, logs: Sequence[LogFacts], readings: Iterable[Reading] = ()) -> list[Incident]:
    """Return the incidents, the newest first, with what is proven to be theirs; then what stands alone.

    Logs in which nothing was understood, and of which no rule says anything, are left out.
    """
    found = material.incidents
    given = list(readings)
    bundles = [reading.identity for reading in given if reading.identity.folder]
    return assign_readings(assign_logs(found, [one for one in logs if _says_something(one)], bundles), given)


def _says_something(facts: LogFacts) -> bool:
    """Say whether a line was understood, or a rule knows what a request failed of that no line tells apart."""
    if facts.understood_lines:
        return True
    from gemma4_triage.logs.catalog import with_those_alike

    return bool(with_those_alike(facts))


def concluded(incidents: Sequence[Incident]) -> list[tuple[Incident, tuple[Finding, ...]]]:
    """Return incidents with what they come to, in their order.

    A run of which nothing is known but that it ended stands behind the log that is guessed to be its own, if that says
    why with more certainty.
    """
    found = [(incident, findings_of(incident)) for incident in incidents]
    ordered = list(found)
    for run, says in found:
        told = causes(says)
        if [cause.rule for cause in told] != [ended_without_saying_why.ID]:
            continue
        why = next((one for one in found if _is_guessed(one[0], run) and _surer(causes(one[1]), told[0])), None)
        if why is not None:
            ordered.remove((run, says))
            ordered.insert(ordered.index(why) + 1, (run, says))
    return ordered


def _is_guessed(alone: Incident, run: Incident) -> bool:
    return any((link.relation, link.incident) == ("guess", run.name) for link in alone.log_links)


def _surer(told: Sequence[Finding], than: Finding) -> bool:
    return bool(told) and told[0].confidence is not at_most(told[0].confidence, than.confidence)


def findings_of(incident: Incident) -> tuple[Finding, ...]:
    """Return what an incident comes to, of all its evidence; the most certain first."""
    found = conclude(incident, [*_from_logs(incident), *_from_readings(incident)])
    # That requests were there, or that no process said why it ended, is no cause where something else says why.
    others = [finding for finding in found if finding.rule not in (requests_file.RULE, ended_without_saying_why.ID)]
    told = any(not finding.is_note and not _is_load(finding, incident) for finding in others)
    return completed(others if told else found, incident)


def _is_load(finding: Finding, incident: Incident) -> bool:
    """Return whether it is about how the server served, which only logs say."""
    if not incident.logs:
        return False
    from gemma4_triage.logs.catalog import is_load

    return is_load(finding)


def _from_readings(incident: Incident) -> list[Finding]:
    """Return what readers found.

    Of a server that answers, stacks that differ are no hang: ranks of a healthy one stand in different places too.
    """
    answers = any(read.kind == collection.KIND and not read.findings for read in incident.readings)
    kept = (read for read in incident.readings if not (answers and read.kind == py_spy.KIND))
    return [finding for read in kept for finding in read.findings]


def _from_logs(incident: Incident) -> list[Finding]:
    if not incident.logs:
        return []
    # The rules over logs are many modules, loaded where there is a log.
    from gemma4_triage.logs.catalog import with_those_alike

    return [one for facts in incident.logs for one in with_those_alike(_of_release(facts, incident))]


def _of_release(facts: LogFacts, incident: Incident) -> LogFacts:
    """Return the facts with the release that the incident's dumps were written by, where the log names none."""
    written_by = (dump.manifest.versions.get("sglang") for dump in incident.dumps)
    return facts if facts.release else replace(facts, release=next(filter(None, written_by), ""))
