"""The hierarchical cache could not write to or read from its lower tiers; a server goes on without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Alarm, Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, over, remarked, says

_WORDS = pattern(
    r"Prefetch operation \S+ failed to retrieve|Expected DiskDescriptor|"
    r"\b(?:L[23]|HiCache|[Ss]torage(?: backend)?|[Hh]ost cache) (?:write|read|get|set|load|backup|prefetch)\w* "
    r"(?:failed|timed out)"
)


_UNREAD = pattern(r"retrieve|DiskDescriptor")
_ON_DISK = (
    "Mooncake wrote those pages to disk and does not read them back from there for this client: its release and its "
    "offload settings on every side, or a store without SSD offload (SGLang 24018)"
)


def _lost_segment(facts: LogFacts, death: Death, alarm: Alarm | None) -> bool:
    """Say whether pages that the store lists are not read again and again, each behind a time-out of the transfer."""
    slow = facts.remarks.get("transport_slow")
    waited = slow is not None and "Failed to complete transfers after" in slow.text
    return waited and alarm is not None and alarm.count > 1 and "failed to retrieve" in death.message


def _of_a_lost_segment(facts: LogFacts, death: Death, many: list[Evidence]) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="The store lists pages that it can no longer read: whoever held them (a Mooncake segment) is gone or not "
        "reached, and each prefetch of them waits for a time-out while requests wait behind it.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the cache said"),
            *many,
            *remarked(facts, "transport_slow", "the transfer that did not end, and its target"),
            *of_settings(facts, "hicache_storage_backend", "enable_hierarchical_cache"),
        ),
        ruled_out_if=("the target of those transfers answers, and they end with a longer MC_TRANSFER_TIMEOUT",),
        advice=(
            "look whether the target of those transfers lives; restart it, or take its segment out of the store's "
            "master (its log says client_expired; a shorter time to live there)",
            "--hicache-storage-prefetch-policy best_effort or timeout in place of wait_complete, so that no request "
            "waits for it; without --hicache-storage-backend until the store is well",
            "then a later release, which may remember for a while what could not be read (SGLang 31315)",
        ),
        upstream=("SGLang 31315",),
    )


_LOST = "load_back failed for rid"


def _of_a_request(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="A request failed on a decode server: KV that was promised of the hierarchical cache or its storage did "
        "not come back, mostly for its count was stale (pages given up, or a prefetch that was never begun).",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the cache said"),
            *of_settings(facts, "hicache_storage_backend", "disaggregation_decode_enable_radix_cache"),
        ),
        ruled_out_if=("every request fails so",),
        advice=(
            "send it again; until a later release the decode server without --disaggregation-decode-enable-radix-cache "
            "or without --hicache-storage-backend (SGLang 30322)",
            "more room on the host (--hicache-size), and the store's own log",
        ),
        upstream=("SGLang 30322",),
    )


_FOLDER = pattern(r"ssd_offload_path[\"']?\s*[:=]\s*[\"']?([^\"',}\s]+)")


def _one_folder(facts: LogFacts) -> str:
    """Return the folder of the disk tier that all ranks of this server are given; "" if it has one rank or none."""
    ranks = facts.settings.get("tp_size", facts.arguments.get("tp_size", "1"))
    given = facts.arguments.get("hicache_storage_backend_extra_config", "")
    found = _FOLDER.search(given) if ranks.isdecimal() and int(ranks) > 1 else None
    return found[1] if found else ""


def _of_one_folder(facts: LogFacts, death: Death, many: list[Evidence]) -> Finding:
    folder = _one_folder(facts)
    return Finding(
        rule=RULE.id,
        cause=f"Pages on disk are not read back, and all ranks of this server are given one folder for them ({folder}),"
        " where files of one rank that are named as another's overwrite those: what lies there is then lost or wrong.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            *of_failure(facts, death, "what the cache said"),
            *many,
            over(facts, "server_args", folder, "ssd_offload_path, for every rank"),
            *of_settings(facts, "hicache_storage_backend", "tp_size"),
        ),
        ruled_out_if=("each rank has a folder of its own below it, with files of that rank alone",),
        advice=(
            "without ssd_offload_path, or a folder for each rank (a later release adds the rank to the path): and "
            "delete the files that lie there, which cannot be trusted",
            "until then --hicache-storage-backend without a disk below it; neither a larger disk nor another prefetch "
            "policy changes it (SGLang 35484)",
        ),
        upstream=("SGLang 35484",),
    )


def _tell(facts: LogFacts, death: Death) -> Finding:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "storage"), None)
    many = [over(facts, "such lines", alarm.count, "of all ranks")] if alarm and alarm.count > 1 else []
    raised = [
        over(
            facts,
            "raised in",
            error.frame,
            f"the exception that was survived: {error.type_name} {error.message}".strip(),
        )
        for error in facts.errors[-1:]
        if error.frame
    ]
    if _LOST in death.message:
        return _of_a_request(facts, death)
    if _lost_segment(facts, death, alarm):
        return _of_a_lost_segment(facts, death, many)
    if _one_folder(facts):
        return _of_one_folder(facts, death, many)
    draft = "draft" in death.message.lower()
    unread = _UNREAD.search(death.message) is not None
    what = "the KV of drafts" if draft else "KV"
    return Finding(
        rule=RULE.id,
        cause=f"The lower tiers of the hierarchical cache do not {'give back' if unread else 'take'} {what}. The "
        "server goes on without: nothing is lost but the hits that such KV would have given.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the cache said"),
            *many,
            *raised,
            *of_settings(facts, "hicache_storage_backend", "enable_hierarchical_cache", "speculative_algorithm"),
        ),
        ruled_out_if=("the server ends, or answers become wrong: then something else happened",),
        advice=(
            *(
                ("drafts and the storage tier do not go together here: once without --speculative-algorithm",)
                if draft
                else ()
            ),
            *((_ON_DISK,) if "DiskDescriptor" in death.message else ()),
            "without --hicache-storage-backend the messages end; a later release may have mended it",
            "if it used to work: the store's own log, its free space and its network",
        ),
    )


_SETS_UP = pattern(r"\w*(?:mooncake_store|hf3fs|hicache_\w+|nixl)\w*\.py:\d+ (?:warmup|setup|connect\w*|_?init\w*)$")


def _set_up(death: Death) -> bool:
    """Say whether a server died as it set the storage up."""
    return any(map(_SETS_UP.match, death.frames[-1:]))


def _tell_set_up(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="The storage behind the hierarchical cache refused a connection, or named a client that is gone, as the "
        "server set it up, which ended the start.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *remarked(facts, "transport_refused", "what it met before"),
            *of_settings(facts, "hicache_storage_backend", "enable_hierarchical_cache"),
        ),
        ruled_out_if=("it starts alike without --hicache-storage-backend, and dies then too",),
        advice=(
            "the store's own services first (Mooncake: master and metadata server, reachable from here, with room): "
            "its log, its port, and --hicache-storage-backend-extra-config",
            "a store that still lists clients that have ended: start its master anew, or wait until they expire, then "
            "start the server again; a later release tries that by itself",
            "once without --hicache-storage-backend",
        ),
    )


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next(filter(_set_up, facts.deaths), None)
    if death is not None and "transport_refused" in facts.remarks:
        yield _tell_set_up(facts, death)
    yield from _OF_WORDS.find(facts)


_OF_WORDS = of_death(
    "storage-tier", "the hierarchical cache cannot use a lower tier", says(_WORDS), _tell, alarms=("storage",)
)
RULE = replace(_OF_WORDS, find=_find, explains=lambda death: _set_up(death) or _OF_WORDS.explains(death))
