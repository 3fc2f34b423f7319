"""One sentence: which index, valid where, invalid where, hence what is missing."""

from gemma4_dumps.schema import Heading, Manifest

SPACE_NAMES = {"full": "full", "swa": "SWA", "draft": "draft"}


def index_unit(manifest: Manifest) -> str:
    """Say what the offending numbers count: "page", "slot", or the places where a page of a leak audit is."""
    if manifest.rule == "leak-audit":
        return "places"
    tables = " ".join(offence.table for offence in manifest.offences)
    return "page" if "page" in f"{manifest.rule} {tables}" else "slot"


def place(manifest: Manifest | Heading) -> str:
    """Say where it happened, in words: "layer 4 (sliding), draft". Empty if nothing is known."""
    layer = manifest.layer
    words = []
    if layer.id is not None:
        words.append(f"layer {layer.id}" + (f" ({layer.type})" if layer.type else ""))
    elif layer.type:
        words.append(f"{layer.type} layers")
    if manifest.role:
        words.append(manifest.role)
    return ", ".join(words)


def provenance_sentence(manifest: Manifest) -> str:
    """Return what is wrong with a dump's first index as one sentence, or the probe's own explanation.

    For example "page 70 valid in the full pool (161 pages), out of range for the SWA pool (65 pages): full->SWA
    translation missing; layer 4 (sliding), draft".
    """
    text = _index_facts(manifest)
    cause = _cause(manifest)
    if text and cause:
        text = f"{text}: {cause}"
    text = text or cause
    where = place(manifest)
    return "; ".join(part for part in (text, where) if part)


def _index_facts(manifest: Manifest) -> str:
    if not manifest.offences or index_unit(manifest) == "places":
        return ""
    unit, value, origin = index_unit(manifest), manifest.offences[0].value, manifest.provenance
    facts = []
    table_pool = manifest.extents.get(f"{unit}s_{origin.table_space}_pool")
    if origin.table_space != origin.buffer_space and table_pool is not None and 0 <= value < table_pool:
        facts.append(f"valid in the {_pool(origin.table_space)} ({table_pool} {unit}s)")
    bound = manifest.offences[0]
    if bound.upper == bound.lower + 1 and value != bound.lower:
        facts.append(f"where {bound.lower} belongs")
    elif not bound.lower <= value < bound.upper:
        owner = _pool(origin.buffer_space) if origin.buffer_space != "unknown" else "buffer"
        facts.append(f"out of range for the {owner} ({bound.upper} {unit}s)")
    elif not facts:
        facts.append(f"in a place where it must not be ({manifest.verdict.replace('_', ' ')})")
    return f"{unit} {value} {', '.join(facts)}"


def _cause(manifest: Manifest) -> str:
    origin = manifest.provenance
    if origin.table_space == "full" and origin.buffer_space == "swa":
        return "full->SWA translation missing"
    if "unknown" not in (origin.table_space, origin.buffer_space) and origin.table_space != origin.buffer_space:
        return f"indices of the {_pool(origin.table_space)} used on the {_pool(origin.buffer_space)}'s buffer"
    return origin.explanation


def _pool(space: str) -> str:
    return f"{SPACE_NAMES.get(space, space)} pool"
