"""A leak audit found something, and its dump is not here: dropped by the caps, pruned, or left behind."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import counted
from gemma4_triage.diagnose.incident import LEAK, Incident, Ledger
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "ledger-without-dump"


def find(incident: Incident) -> Finding | None:
    if incident.first(rule=LEAK) is not None:
        return None
    evidence = tuple(piece for ledger in incident.ledgers for piece in _found(ledger))
    if not evidence:
        return None
    return Finding(
        rule=ID,
        cause="The leak audit of this run found pages in the wrong place, and the dump that says which is not here.",
        # That it found them is written down; why they are there is not.
        confidence=Confidence.POSSIBLE,
        evidence=evidence,
        advice=("The store's caps drop the oldest dumps first: copy the folder before the server writes on.",),
        next_commands=(commands.serve(incident, "--debug log"),),
    )


def _found(ledger: Ledger) -> tuple[Evidence, ...]:
    findings = ledger.fields.get("findings")
    verdicts = findings if isinstance(findings, dict) else {}
    pieces = [counted(ledger, f"findings.{verdict}", "so many pages, over the whole run") for verdict in verdicts]
    if pieces and ledger.fields.get("balanced") is False:
        pieces.append(counted(ledger, "balanced", "at its last audit the parts of a pool did not add up to it"))
    return tuple(pieces)


RULE = Rule(ID, find, ruled_out_if=(Exclusion("the dump is in another folder: see --dir"),), leads_to=LOSES_PAGES)
