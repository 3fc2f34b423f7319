"""Why a port at which a server's own processes meet was taken, by what the start says of that very port."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import pattern

_PORT = pattern(r"\bport: (\d{1,5})\b")
_CHOSEN = "was taken between choosing and using it"


def by_its_start(facts: LogFacts, finding: Finding) -> Finding:
    """Return the finding; where the start itself names the port that was taken, with what that leaves as the cause.

    Args:
        facts: the log.
        finding: of a start that was refused.
    """
    asked = facts.arguments.get("dist_init_addr", "").rpartition(":")[2]
    if _CHOSEN not in finding.cause or not asked.isdecimal():
        return finding
    ports = {found[1] for death in facts.deaths if (found := _PORT.search(death.message)) is not None}
    if asked not in ports:
        return finding
    replicas = facts.settings.get("dp_size", "1")
    if replicas.isdecimal() and int(replicas) > 1 and facts.settings.get("enable_dp_attention") != "True":
        return finding.model_copy(
            update={
                "cause": f"Port {asked}, which --dist-init-addr names, is in use: each of the {replicas} replicas of "
                "--dp takes it for the meeting of its own ranks, and only the first one can.",
                "confidence": Confidence.LIKELY,
                "ruled_out_if": (f"ss -ltnp shows another program at port {asked} before the start",),
                "advice": (
                    "one server for each replica, each with its own --dist-init-addr, behind the router; on one node "
                    "--dp without --dist-init-addr and --nnodes",
                    "or --enable-dp-attention with it, if that is what --dp is meant for: its ranks meet once",
                    "then a later release; another port alone is taken twice as well",
                ),
            }
        )
    return finding.model_copy(
        update={
            "cause": f"Port {asked}, which --dist-init-addr names, is in use on this node.",
            "advice": (
                "ss -ltnp names what listens there: a server that has not ended whole, or a second one that was given "
                "the same address; end it, or another port, the same one on all nodes",
            ),
        }
    )
