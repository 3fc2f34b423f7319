"""A vLLM engine to which another hands KV has none running and no block free: requests wait for KV that never came."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.remarks import STANDING
from gemma4_triage.logs.rule import Rule, at

_USED = pattern(r"Waiting: (\d+) reqs,.{0,60}?KV cache usage: (\d+(?:\.\d+)?)%")
_FULL = 90.0  # percent
_CONNECTOR = pattern(r"kv_connector\W+(\w+)")
_OF_TRANSFERS = pattern(r"(?i)transfer|connector|nixl|mooncake|remote|kv[_ ]?(?:pull|load|recv|send)")


def _find(facts: LogFacts) -> Iterator[Finding]:
    connector = _CONNECTOR.search(facts.arguments.get("kv_transfer_config", ""))
    if connector is None or facts.deaths:
        return
    for name, first in facts.remarks.items():
        if not name.startswith(STANDING) or not name.endswith(" 1"):
            continue
        last = facts.remarks.get(f"{name[:-1]}3") or facts.remarks.get(f"{name[:-1]}2")
        used = _USED.search(last.text) if last is not None else None
        if last is None or used is None or float(used[2]) < _FULL:
            continue
        before = (alarm for alarm in facts.alarms if alarm.place.line < first.place.line)
        failed = next((alarm for alarm in before if _OF_TRANSFERS.search(alarm.text)), None)
        if failed is None:
            continue
        yield Finding(
            rule=RULE.id,
            cause=f"{used[1]} requests wait, none runs, and {used[2]}% of the KV cache is in use: blocks are held by "
            f"requests whose KV from the other engine never came, as after the transfer that failed in "
            f"line {failed.place.line}. {connector[1]} waits for it without an end, so that neither those requests nor "
            "their blocks are given up, and the pool leaks until nothing fits.",
            confidence=Confidence.LIKELY,
            evidence=(
                at(facts, failed.place, failed.text, "the transfer that failed before"),
                at(facts, first.place, first.text, "the first line in a row by which none runs"),
                at(facts, last.place, last.text, "the last of them"),
            ),
            ruled_out_if=("the usage of the cache falls while nothing runs",),
            advice=(
                "restart this engine (of the side that decodes): nothing else gives the blocks back; watch Running: 0 "
                "beside a full cache, and let the router take such an engine out",
                f"a later release of vLLM, whose {connector[1]} bounds the wait and reports what failed; until then "
                "another kv_connector (NixlConnector with its time-out), or each engine for itself",
                "the log of the other engine at that time: what ended there or reset the connection comes first; a "
                "larger cache only delays it",
            ),
        )
        return


RULE = Rule(
    "blocks-kept",
    "a vLLM engine waits for KV that never came, and its cache is full",
    _find,
    alarms=frozenset({"failed", "timeout", "trouble"}),
)
