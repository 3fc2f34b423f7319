"""A guard that was asked for was not in force, so that what came first may have gone unseen."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import counted, guarded
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "guards-incomplete"


def find(incident: Incident) -> Finding | None:
    evidence = tuple(piece for guards in incident.guards for piece in _gaps(guards))
    unread = tuple(
        counted(ledger, "cannot", "why no audit ran") for ledger in incident.ledgers if ledger.fields.get("cannot")
    )
    if not evidence and not unread:
        return None
    return Finding(
        rule=ID,
        cause="Not all guards that were asked for were in force: what they watch went unseen in that process.",
        # That is certain; that the cause hides behind it is not, once other dumps speak.
        confidence=Confidence.POSSIBLE if incident.dumps else Confidence.CERTAIN,
        evidence=(*evidence, *unread),
        advice=("A probe is left out where GEMMA4_TRIAGE_ALLOW_MISSING=1 lets a server start without it.",),
        next_commands=(commands.DOCTOR, commands.serve(incident, "--debug 1", "--dry-run")),
    )


def _gaps(guards: Guards) -> tuple[Evidence, ...]:
    gaps: list[Evidence] = []
    if guards.fields.get("verified") is False:
        gaps.append(guarded(guards, "verified", "this process never verified its patches"))
    for at, row in guards.rows():
        if row.get("attached") is not True:
            gaps.append(guarded(guards, f"{at}.id", "asked for and not attached"))
            if row.get("reason"):
                gaps.append(guarded(guards, f"{at}.reason", "why"))
        elif row.get("self_test") not in (None, "fired"):
            gaps.append(guarded(guards, f"{at}.self_test", f"the self test of {row['id']}"))
    return tuple(gaps)


def _were_in_force_later(seen: Seen) -> bool:
    """Return whether a manifest of the same process says of each guard that is named that it was in force after all."""
    if any(ledger.fields.get("cannot") for ledger in seen.incident.ledgers):
        return False
    incomplete = [guards for guards in seen.incident.guards if any(_gaps(guards))]
    whole = [guards for guards in seen.incident.guards if guards not in incomplete and guards.pid is not None]

    def mended(guards: Guards) -> bool:
        asked = {str(row["id"]) for _, row in guards.rows()}
        same = [one for one in whole if (one.pid, one.started_utc) == (guards.pid, guards.started_utc)]
        return any(asked <= {str(row["id"]) for _, row in one.rows()} for one in same)

    return all(map(mended, incomplete))


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("another manifest of that process says that they were in force", _were_in_force_later),),
)
