"""The hierarchical cache could not write to or read from its lower tiers; a server goes on without them."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, over, pattern, says

_WORDS = pattern(
    r"\b(?:L[23]|HiCache|[Ss]torage(?: backend)?|[Hh]ost cache) (?:write|read|get|set|load|backup|prefetch)\w* "
    r"(?:failed|timed out)"
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
    draft = "draft" in death.message.lower()
    what = "the KV of drafts" if draft else "KV"
    return Finding(
        rule=RULE.id,
        cause=f"The lower tiers of the hierarchical cache do not take {what}. The server goes on without: "
        f"nothing is lost "
        "but the hits that such KV would have given.",
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
            "without --hicache-storage-backend the messages end; a later release may have mended it",
            "if it used to work: the store's own log, its free space and its network",
        ),
    )


RULE = of_death(
    "storage-tier", "the hierarchical cache cannot use a lower tier", says(_WORDS), _tell, alarms=("storage",)
)
