"""Why a port at which a server's own processes meet was taken, by what the start says of that very port."""

from __future__ import annotations

from typing import Any

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import on_rank

_PORT = pattern(r"\bport: (\d{1,5})\b")
_CHOSEN = "was taken between choosing and using it"
_TAKEN = "The port is taken"
_BOUND = pattern(r"(?i)address already in use .{0,20}tcp://\S+:(\d{1,5})\b")
_OF_A_SPLIT = pattern(r"conn\.py:|\S+ \w*(?:prefill|decode|bootstrap)_thread$")


_ELSEWHERE = "is none of this host's"
_ADDRESS = pattern(r"tcp://\[?([\w.:-]+?)\]?:\d+")


def _of_a_later_node(facts: LogFacts) -> dict[str, Any]:
    """Return what to say of a node behind the first that listens at the first one's address; empty elsewhere."""
    first = facts.arguments.get("dist_init_addr", "").rpartition(":")[0].strip("[]")
    tried = {found[1] for death in facts.deaths if (found := _ADDRESS.search(death.message)) is not None}
    if facts.arguments.get("node_rank", "0") in ("0", "None") or first not in tried:
        return {}
    blocks = facts.arguments.get("SGLANG_BLOCK_NONZERO_RANK_CHILDREN")
    variable = " (SGLANG_BLOCK_NONZERO_RANK_CHILDREN=0 in its command lets it)" if blocks == "0" else ""
    return {
        "cause": f"This node is not the first one, and its process listens at the first one's address ({first}), as "
        f"the first alone does{variable}: --dist-init-addr is right, the network too.",
        "advice": (
            "no SGLANG_BLOCK_NONZERO_RANK_CHILDREN=0 on nodes behind the first (unset it there): such a process then "
            "only waits for its ranks",
            "a program that starts the engine itself (Dynamo, a trainer): its release for this SGLang; then a later "
            "release of SGLang, which binds there on the first node alone",
        ),
    }


def _of_its_own(facts: LogFacts) -> dict[str, Any]:
    """Return what to say of a port at which a server's own processes meet; empty if it is the one that it serves at."""
    for death in facts.deaths:
        found = _BOUND.search(death.message) if death.type_name == "ZMQError" else None
        if found is None or found[1] == facts.arguments.get("port"):
            continue
        picked = any(map(_OF_A_SPLIT.match, death.frames[-3:]))
        return {
            "cause": f"Port {found[1]}, at which the server's own processes meet{on_rank(death.rank)}, is taken. It is "
            "not the one of --port: "
            + (
                "a rank picks a free one and listens there a little later, and another rank or program took it "
                "meanwhile."
                if picked
                else "it was picked free and taken since, by another rank or program, or counted from --port or "
                "--dist-init-addr, and a second server or the rest of an earlier one has it."
            ),
            "confidence": Confidence.LIKELY,
            "ruled_out_if": (f"ss -ltnp shows another server at port {found[1]}, before and after the start",),
            "advice": (
                f"start again: ss -ltnp | grep {found[1]} shows nobody there where ranks only raced for it",
                "if somebody has it: end what is left of the earlier server; several servers of a host get a --port "
                "(and --dist-init-addr) some hundreds apart, outside of net.ipv4.ip_local_port_range",
                "if it comes again and again: a later release, which binds a port and does not look for a free one "
                "first",
            ),
        }
    return {}


def by_its_start(facts: LogFacts, finding: Finding) -> Finding:
    """Return the finding; where the start itself names the port that was taken, with what that leaves as the cause.

    Args:
        facts: the log.
        finding: of a start that was refused.
    """
    if _ELSEWHERE in finding.cause and (later := _of_a_later_node(facts)):
        return finding.model_copy(update=later)
    if finding.cause.startswith(_TAKEN) and (own := _of_its_own(facts)):
        return finding.model_copy(update=own)
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
