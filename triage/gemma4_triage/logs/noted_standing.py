"""A start of which a note says that it stands: where its own lines end says what to look at."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import COLLECT, at, of_settings
from gemma4_triage.logs.rules.start_stopped import unfinished
from gemma4_triage.logs.switched_on import features

_FEW = 2  # prefills
_MOST = 3  # features
_ENCODER = (
    "without --mm-enable-dp-encoder: ranks then encode different images, and one that has none does not come to a sum "
    "that a part of the encoder still makes over all of them (SGLang 20759); then a later release"
)
_PY_SPY = (
    "py-spy dump --pid of every rank, and nvidia-smi: one GPU at 100% beside idle ones is a sum for which the others "
    "do not come, all idle is a wait on the host"
)
_WITHOUT = "once with --skip-server-warmup, and one short request of text alone: if that is answered, it is its image"


def start_that_stands(facts: LogFacts) -> Finding | None:
    """Return what to look at where somebody noted that a start goes no further; None where nobody did."""
    noted = facts.remarks.get("stands")
    if noted is None or not noted.text.startswith("#") or facts.deaths or facts.alarms:
        return None
    if (stands := unfinished(facts)) is not None:
        line, said, look = stands
        if noted.place.line < int(line.removeprefix("line ")):
            return None
        return _finding(facts, f"The start goes no further, as a note here says; its last line is: {said}", (look,))
    if not _in_its_warmup(facts):
        return None
    encodes = facts.settings.get("mm_enable_dp_encoder", facts.arguments.get("mm_enable_dp_encoder")) == "True"
    several = facts.settings.get("tp_size", "1") not in ("1", "None")
    return _finding(
        facts,
        "The server's own first request, with which it warms up, has not ended, as a note here says: HTTP answers, the "
        "prefill was begun, and the line that the server is ready lacks.",
        (
            *((_ENCODER,) if encodes and several else ()),
            _PY_SPY,
            _WITHOUT,
            *(f"once {one.without}, which this server has" for one in features(facts)[:_MOST]),
        ),
    )


def _in_its_warmup(facts: LogFacts) -> bool:
    """Say whether HTTP is up, one prefill or two were begun, and nothing came of them."""
    begun = sum(rank.prefill_lines for rank in facts.ranks)
    return (
        "http_ready" in facts.remarks
        and "ready" not in facts.remarks
        and 0 < begun <= _FEW
        and not any(rank.decode_lines for rank in facts.ranks)
    )


def _finding(facts: LogFacts, cause: str, advice: tuple[str, ...]) -> Finding:
    noted = facts.remarks["stands"]
    return Finding(
        rule="hang",
        cause=cause,
        confidence=Confidence.POSSIBLE,
        evidence=(at(facts, noted.place, noted.text, "the note"), *of_settings(facts, "tp_size", "nnodes")),
        ruled_out_if=("it goes on by itself after some minutes: kernels and graphs take that long",),
        advice=advice,
        next_commands=(COLLECT,),
    )
