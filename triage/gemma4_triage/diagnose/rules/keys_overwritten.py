"""Keys or values that a forward of the target stored are others as the next one is to read them."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "keys-overwritten"
_COPIED = (
    "It has what another token has there: look at what copies keys from slot to slot (move_kv_cache, transfers, a "
    "store of a row's keys at another row's slots)."
)
_CLEARED = "It has zeros there: look at what clears a buffer or a slot of it."
_ANY = (
    "Look at what stores in that pool beside set_kv_buffer, and at kernels that may write past their own rows: padded "
    "tokens of a CUDA graph, copies between slots, scales. Once with another --attention-backend, and once with "
    "--disable-cuda-graph, says whether it is one of these."
)


def find(incident: Incident) -> Finding | None:
    """Return a finding where the sums of what stands in a slot are not those behind the forward that wrote it."""
    dump = incident.first(rule=REQUEST_ROWS, verdict="keys_changed")
    if dump is None:
        return None
    told = dump.manifest.scalars
    part, layer, pool, stands = (told.get(name) for name in ("part", "layer", "pool", "stands_there"))
    count, step = told.get("tokens_changed"), told.get("stored_in_step")
    what = "Keys or values" if part is None else str(part).capitalize()
    where = f"in several layers of the {pool} pool" if layer is None else f"in layer {layer} ({pool} pool)"
    more = f", and of {count - 1} more" if isinstance(count, int) and count > 1 else ""
    now = f" {stands} now" if stands in ("zeros", "NaN") else f" now {stands}" if stands else " others now"
    return Finding(
        rule=ID,
        cause=(
            f"{what} of token {told.get('token')} of the request in slot {told.get('request_slot')}{more}, stored in "
            f"step {step} {where}, are{now}: something has written there since that is no forward which was to write "
            "that slot."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.tokens_changed", "tokens whose keys or values have changed"),
            said(dump, "scalars.tokens_looked_at", "of so many that the forward is to read and that were looked at"),
            said(dump, "scalars.value", "the slot of the first of them in its pool"),
            said(dump, "scalars.stored_in_step", "the step whose forward stored it"),
            *([said(dump, "scalars.stands_there", "what stands there now")] if stands else []),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(_COPIED if str(stands).startswith("what") else _CLEARED if stands == "zeros" else _ANY,),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("SGLang itself moves keys there, as between the branches of drafts, or loads them from a host pool"),
    ),
)
