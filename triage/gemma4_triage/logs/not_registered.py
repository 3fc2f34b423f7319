"""A prefill server's rank could not tell the bootstrap server, which decode servers ask, where it is."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_WORDS = pattern(r"failed to register to bootstrap server")
_AT = pattern(r"host='(?P<host>[^']+)', port=(?P<port>\d+)")
_REFUSED = pattern(r"(?i)refused|Errno 111")
_WILD = frozenset({"::", "[::]", "0.0.0.0", "::0"})


def says_so(text: str) -> bool:
    """Say whether a line tells of a rank that could not register."""
    return _WORDS.search(text) is not None


def told_before(facts: LogFacts) -> bool:
    """Return whether a line ahead of all ends says that a rank could not register."""
    begun = min((death.place.line for death in facts.deaths), default=0)
    of_transfers = (alarm for alarm in facts.alarms if alarm.kind == "transfer" and alarm.place.line < begun)
    return any(says_so(alarm.text) for alarm in of_transfers)


def not_registered(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return why a rank is not known to decode servers, and what to do; None where none says so."""
    if not says_so(death.message):
        return None
    found = _AT.search(death.message)
    host, port = (found["host"], found["port"]) if found else ("its host", "its port")
    refused = ", where nothing listens" if _REFUSED.search(death.message) else ""
    asked = facts.arguments
    later = asked.get("node_rank", "0") not in ("0", "None")
    several = asked.get("nnodes", "1") not in ("1", "None")
    fixed = "disaggregation_bootstrap_port" in asked
    wild = asked.get("host", "") in _WILD
    why = (
        f"a rank of the prefill server could not register at its bootstrap server ({host}, port {port}){refused}: "
        "decode servers do not learn of it, and wait for it or fail on it"
    )
    return why, (
        *(
            (
                "one --disaggregation-bootstrap-port, the same number on every node of the prefill server (and on "
                "decode): only the first node has that service, and one that picks a free port of its own asks in "
                "vain",
            )
            if several and (later or not fixed)
            else ()
        ),
        *(
            (
                f"--host with the address itself ({host}, or the IPv6 one) in place of '{asked['host']}': the service "
                "listens at one family of addresses, and ranks register at the other; then a later release",
            )
            if wild
            else ()
        ),
        f"ss -ltnp | grep {port} on {host} while it runs, and curl http://{host}:{port}/health from here: it is a "
        "thread of the prefill server's first node, at --disaggregation-bootstrap-port (8998); a proxy or firewall "
        "between (no_proxy)",
    )
