"""A forward of the target left slots that it was to write as they were: no keys or values of these tokens are there."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "keys-not-stored"
_ALL = "all {new} tokens"
_SOME = "{wrong} of its {new} tokens, first token {token} of the request in slot {slot}"
_EVERYWHERE = "It stored nothing anywhere, where forwards of other kinds have"
_PLACES = "First is layer {layer} ({pool} pool)"
_MODES = {
    "TARGET_VERIFY": "a verification of drafts",
    "DECODE": "a decode",
    "EXTEND": "a prefill",
    "MIXED": "a prefill with decodes in it",
}


def find(incident: Incident) -> Finding | None:
    """Return a finding where marked slots of a forward were still marked as its logits were there."""
    dump = incident.first(rule=REQUEST_ROWS, verdict="not_stored")
    if dump is None:
        return None
    told = dump.manifest.scalars
    wrong, new, parts, known = (told.get(name) for name in ("tokens_wrong", "tokens_new", "parts_wrong", "parts_known"))
    which = _ALL if wrong == new else _SOME
    which = which.format(new=new, wrong=wrong, token=told.get("token"), slot=told.get("request_slot"))
    where = _EVERYWHERE if parts == known else _PLACES.format(layer=told.get("layer"), pool=told.get("pool"))
    what = "keys and values" if parts == known else told.get("part")
    mode = _MODES.get(str(told.get("forward_mode")), "a forward")
    return Finding(
        rule=ID,
        cause=(
            f"{mode.capitalize()} has not stored {what} of {which}: what its slots had before stands there still, and "
            f"every later step reads that as theirs. {where}: what stores them was left out, or stored elsewhere."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.tokens_wrong", "tokens of which some are missing"),
            said(dump, "scalars.tokens_new", "tokens of the forward"),
            said(dump, "scalars.parts_wrong", "keys or values of a layer, in which they are missing"),
            said(dump, "scalars.parts_known", "of so many that were looked at"),
            said(dump, "scalars.value", "the first such slot of the full pool"),
            said(dump, "scalars.forward_mode", "the kind of forward"),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(
            "Look at what that backend does for this kind of forward: set_kv_buffer, save_kv_cache, and the slots and "
            "the layer that it is called with. Once with another --attention-backend says whether it is the backend.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("a kernel stores there after the logits are made, or the mark itself is what it stored"),),
)
