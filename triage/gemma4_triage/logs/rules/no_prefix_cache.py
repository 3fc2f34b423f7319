"""A feature asks the prefix cache for what the server's has not, for it was started without one."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, says

_LACKS = pattern(r"'\w*ChunkCache' object has no attribute '(\w+)'")
_OF_THE_HOST = pattern(r"hicache|host|load_back|writ|prefetch|storage")


def _tell(facts: LogFacts, death: Death) -> Finding:
    lacks = _LACKS.search(death.message)
    name = lacks[1] if lacks else ""
    host = _OF_THE_HOST.search(name) is not None
    feature = "--enable-hierarchical-cache" if host else "what the innermost frame belongs to"
    return Finding(
        rule=RULE.id,
        cause=f"The server runs without a prefix cache (--disable-radix-cache), and {feature} needs one: it asks for "
        f"{name}. The two do not go together in this release.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "disable_radix_cache", "enable_hierarchical_cache", "disaggregation_mode"),
        ),
        ruled_out_if=("it dies alike without --disable-radix-cache",),
        advice=(
            f"leave out --disable-radix-cache, or {feature}",
            "a later release refuses the pair at the start, or serves it",
        ),
        upstream=("SGLang 9452",) if host else (),
    )


RULE = of_death("no-prefix-cache", "a feature needs the prefix cache, which is off", says(_LACKS), _tell)
