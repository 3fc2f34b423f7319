"""What serving logs say, as the document of `logs --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gemma4_triage.finding import Finding, causes
from gemma4_triage.logs.facts import LogFacts, RankFacts
from gemma4_triage.logs.rules.refused_by_check import refused
from gemma4_triage.logs.rules.start_stopped import unfinished
from gemma4_triage.logs.suspects import Suspect, suspects


def logs_document(logs: Sequence[LogFacts], findings: Sequence[Finding], torn: int) -> dict[str, Any]:
    """Return what the logs say.

    Args:
        logs: in the order in which they were named.
        findings: of all logs, in the order to show; a finding's evidence names its log.
        torn: how many of the logs were not read to their end.
    """
    return {
        "clean": not causes(findings) and not torn,
        "files_read_in_part": torn,
        "findings": [finding.model_dump(mode="json") for finding in findings],
        "logs": [_log(facts, findings) for facts in logs],
    }


def suspects_document(facts: LogFacts) -> list[dict[str, Any]]:
    """Return why requests were refused, and what to try once, where a log has no finding, in that order."""
    turned_away = [Suspect("refused-requests", one.look, f"{one.why}: {one.said}", ()) for one in refused(facts)]
    stands = unfinished(facts)
    if stands is not None:
        turned_away.append(Suspect("unfinished-start", stands[2], f"{stands[0]} is the last of the start", ()))
    return [asdict(suspect) for suspect in (*turned_away, *suspects(facts))]


def _log(facts: LogFacts, findings: Sequence[Finding]) -> dict[str, Any]:
    found = any(piece.source == facts.name for finding in causes(findings) for piece in finding.evidence)
    return {
        "file": facts.name,
        "size_bytes": facts.size_bytes,
        "release": facts.release or None,
        "lines": facts.lines,
        "understood_lines": facts.understood_lines,
        "understood_by_kind": dict(facts.understood),
        "long_lines": facts.long_lines,
        "torn_last_line": facts.torn_last_line,
        "problem": facts.problem,
        "first_time": facts.first_time,
        "last_time": facts.last_time,
        "server_starts": facts.starts,
        "server_settings": dict(facts.settings),
        "pool_tokens": dict(facts.pool_tokens),
        "injected_faults": list(facts.faults),
        "schedulers": [_rank(rank) for rank in facts.schedulers],
        "dropped_rank_lines": facts.dropped_rank_lines,
        "deaths": [asdict(death) for death in facts.deaths],
        "death_count": facts.death_count,
        "alarms": [asdict(alarm) for alarm in facts.alarms],
        "leaks": [asdict(leak) for leak in facts.leaks],
        "leak_count": facts.leak_count,
        "probe_lines": [asdict(guard) for guard in facts.guards],
        "probe_line_count": facts.guard_count,
        "suspects": [] if found else suspects_document(facts),
    }


def _rank(rank: RankFacts) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "prefill": {
            "lines": rank.prefill_lines,
            "requests": rank.new_requests,
            "new_tokens": rank.new_tokens,
            "cached_tokens": rank.cached_tokens,
            "cached_share": rank.cached_share,
            "cached_share_drop": _record(rank.cached_share_drop),
        },
        "decode": {
            "lines": rank.decode_lines,
            "accept_length": rank.accept_length,
            "accept_length_drop": _record(rank.accept_drop),
            "generated_tokens_per_s": rank.generated_per_s,
            "throughput_drop": _record(rank.throughput_drop),
        },
        "usage": {
            "lines": rank.usage_lines,
            "peaks": {pool: asdict(usage) for pool, usage in rank.peaks.items()},
            "pressed_lines": dict(rank.pressed),
            "pressed_lines_with_a_queue": dict(rank.pressed_queued),
        },
        "retractions": asdict(rank.retractions),
        "series": dict(rank.series),
    }


def _record(drop: Any) -> dict[str, Any] | None:
    return None if drop is None else asdict(drop)
