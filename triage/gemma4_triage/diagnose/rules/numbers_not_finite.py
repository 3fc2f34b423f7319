"""Logits are NaN, or the hidden state that a draft begins with: what a request reads has a number that is none."""

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "numbers-not-finite"
_MORE = {
    "nan_place": "the first of its tokens, stored before this forward, that has such a number; -1: none has",
    "nan_layer": "the first layer that has it there",
    "nan_pool": "of which pool that is",
    "nan_part": "in its keys or in its values",
    "nan_tokens": "tokens stored before that have such a number in any layer",
    "nan_begins": "where the tokens of this forward begin",
    "finite_until": "up to which of its tokens the last forward went whose logits were numbers",
    "nan_new": "tokens of this forward that have one in any layer",
}
_HIDDEN = (
    "The draft of the request in slot {slot} begins with a hidden state that is NaN: its drafts are worth nothing, and "
    "the target rejects them. {logits}"
)
_RIGHT = "The target's own logits were numbers: what hands its hidden states on is wrong."
_NOT_KNOWN = "Whether the target's own logits were NaN, which would be the cause, was not looked at."
_STORED = (
    "Logits of the request in slot {slot} are NaN, so that its answer is noise from here on: the {part} of its token "
    "{place} are not finite in layer {layer} ({pool} pool)."
)
_SINCE = (
    " The forwards since that token was stored gave numbers, so that somebody wrote there since: the slot, or one "
    "beside it, is another's as well, or a kernel stored past its own."
)
_OWN = (
    "Logits of the request in slot {slot} are NaN, so that its answer is noise from here on. What it had stored before "
    "is finite: the NaN is of this forward itself: weights, scales, an embedding of an image or audio, or a kernel."
)
_HANDED = (
    "Logits of the request in slot {slot} were numbers as the forward gave them, and are NaN as the sampler is handed "
    "them, so that its answer is noise from here on: what changes them in between is wrong (penalties, logit_bias, a "
    "grammar's mask, a watermark), or somebody else writes there."
)
_UNKNOWN = (
    "Logits of the request in slot {slot} are NaN, so that its answer is noise from here on. What it had stored was "
    "not looked at."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="not_finite")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    place, hidden = scalars.get("nan_place"), scalars.get("why") == "hidden"
    stored = isinstance(place, int) and place >= 0
    handed = scalars.get("why") == "handed"
    words = _HANDED if handed else _HIDDEN if hidden else _STORED if stored else _UNKNOWN if place is None else _OWN
    right = scalars.get("logits_were_numbers") is True
    slot, layer, pool, part = (scalars.get(one) for one in ("request_slot", "nan_layer", "nan_pool", "nan_part"))
    told = {"slot": slot, "place": place, "layer": layer, "pool": pool, "part": part}
    cause = words.format(**told, logits=_RIGHT if right else _NOT_KNOWN)
    return Finding(
        rule=ID,
        cause=cause + (_SINCE if _was_read_before(dump) else ""),
        confidence=Confidence.LIKELY if (right if hidden or handed else place is not None) else Confidence.POSSIBLE,
        evidence=(
            said(dump, "scalars.rows_wrong", "requests of which that holds"),
            said(dump, "scalars.requests", "of so many in the batch"),
            *(said(dump, f"scalars.{name}", meaning) for name, meaning in _MORE.items() if name in scalars),
            said(dump, "site", "where it was looked at"),
        ),
        advice=_OF_THE_HANDED if handed else _ADVICE[hidden, stored],
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


_OF_THE_HANDED = (
    "Look at ModelRunner._preprocess_logits and at what the request asked for: penalties, logit_bias, response_format.",
    "Other requests of the batch are untouched if their rows are numbers; keys, values and counts are right.",
)
_ADVICE = {
    (True, False): ("Look at what hands hidden states to the draft: by request, and behind each verification.",),
    (False, True): (
        "Look at who else has that slot: gemma4-triage audit --live, and other dumps of this incident.",
        "Of a quantised cache look at its scales (--kv-cache-dtype auto once).",
    ),
    (False, False): (
        "Send the same request alone, once with another attention backend and once with --kv-cache-dtype auto: if it "
        "is NaN again, look at the checkpoint and its scales; if not, at who it shared a batch with.",
    ),
}


def _was_read_before(dump: Dump) -> bool:
    """Return whether a forward of this request before went beyond that token, and gave numbers."""
    place, until = dump.manifest.scalars.get("nan_place"), dump.manifest.scalars.get("finite_until")
    return isinstance(place, int) and isinstance(until, int) and 0 <= place < until


def _came_so(dump: Dump) -> bool | None:
    """Return None where nobody knows of a forward that read what is stored, and gave numbers; False elsewhere."""
    place = dump.manifest.scalars.get("nan_place")
    stored = isinstance(place, int) and place >= 0
    return None if stored and not _was_read_before(dump) else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the forward that stored those keys and values gave NaN as well", in_dump(_came_so)),),
)
