"""Who removed an image's features from shared memory before a rank had read them, by what a log says of its server."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import remarked

_GONE = "An image's features, which one process leaves for others"
_SEVERAL = (
    "requests with n of 1, several of them in place of one with a larger n: the copies of one request share its image, "
    "and what the first leaves of it the others cannot open; then a later release (SGLang 24231)"
)
_GROUPS = (
    "requests with images at a server without --enable-dp-attention (plain --tp): a rank of one group removes what "
    "ranks of another have not opened yet"
)
_PARENT = (
    "where the engine runs within another program (Ray, SLURM's steps, a trainer, multiprocessing): that program's "
    "resource tracker removes shared memory whose owner it takes for ended. Start the server by itself (sglang serve), "
    "or hand features over otherwise: with --dist-init-addr set some releases do; then a later one (SGLang 27434)"
)
_GIVEN_UP = "clients that wait longer: a request that is given up takes its features away while ranks still read them"


def by_its_server(facts: LogFacts, finding: Finding) -> Finding:
    """Return the finding; of features that were gone with who may have removed them, the likeliest first.

    Args:
        facts: the log.
        finding: of a failure that its words tell of.
    """
    if not finding.cause.startswith(_GONE):
        return finding
    looks = tuple(_looks(facts))
    # Where the log shows nothing of who did it, each of these is as good as the others.
    one = len(looks) == 1 and looks[0] is not _PARENT
    return finding.model_copy(
        update={
            "confidence": Confidence.LIKELY if one else Confidence.POSSIBLE,
            "cause": finding.cause if one else f"{finding.cause} The log does not say for sure what did.",
            "evidence": (
                *finding.evidence,
                *(remarked(facts, "several_samples", "what it was asked for") if one else ()),
            ),
            "advice": (*(looks or (_PARENT, _GROUPS, _GIVEN_UP)), *finding.advice),
        }
    )


def _looks(facts: LogFacts) -> Iterator[str]:
    asked = {**facts.arguments, **facts.settings}
    if "several_samples" in facts.remarks:
        yield _SEVERAL
    if asked.get("enable_dp_attention") == "True":
        yield _GROUPS
    if facts.pids.get("outside") and not facts.starts:
        yield _PARENT
    if "abort" in facts.remarks:
        yield _GIVEN_UP
