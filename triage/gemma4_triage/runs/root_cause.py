"""One paragraph on why, put together from what a dump says. Nothing here knows which scenario the dump comes from."""

from gemma4_dumps import audit_findings
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Manifest
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.next_steps import first_finding, fix_line
from gemma4_triage.inspection.provenance_sentence import SPACE_NAMES, index_unit, provenance_sentence

_OWNERS = 3


def root_cause(dump: Dump) -> str:
    """Say where it happened, whose indices met whose buffer, what the probe concluded, the likely cause and its fix."""
    manifest = dump.manifest
    why = manifest.provenance.explanation or provenance_sentence(manifest)
    match manifest.rule:
        case "geometry":
            # At start-up parts are compared, and no index is at fault yet.
            found = (manifest.summary, why)
        case "batch-shapes":
            found = (f"{manifest.site}: {why}",)
        case audit_findings.RULE:
            found = _lost(dump)
        case _:
            found = (_where(manifest), _spaces(manifest), why)
    cause = first_finding(dump)
    sentences = (*found, cause.cause, fix_line(cause) if cause.fix else "")
    return " ".join(_sentence(text) for text in sentences if text)


def _lost(dump: Dump) -> tuple[str, ...]:
    """Who lost how many pages of which pool; else the audit's own words, also where its table cannot be read."""
    try:
        lost = audit_findings.lost(audit_findings.suspects(dump))
    except DumpError:
        lost = []
    return tuple(f"{one.pool} pool: {one.text()}" for one in lost[:_OWNERS]) or (dump.manifest.summary,)


def _where(manifest: Manifest) -> str:
    who = f"the {manifest.role}'s {manifest.site}" if manifest.role else manifest.site
    when = "" if manifest.step is None else f" at step {manifest.step}"
    did = {"trapped": "was stopped before", "contained": "was kept from", "logged": "was seen"}[manifest.action]
    act = "an allocation" if manifest.verdict.startswith("alloc") else f"using {_count(manifest)}"
    layer = manifest.layer
    at = "" if layer.id is None else f" in layer {layer.id}" + (f" ({layer.type})" if layer.type else "")
    return f"{who} {did} {act}{at}{when}"


def _count(manifest: Manifest) -> str:
    unit = index_unit(manifest)
    if not manifest.offence_count:
        return f"{unit} indices of the wrong kind ({manifest.verdict.replace('_', ' ')})"
    return number_of(manifest.offence_count, f"bad {unit} index", f"bad {unit} indices")


def _spaces(manifest: Manifest) -> str:
    origin = manifest.provenance
    if "unknown" in (origin.table_space, origin.buffer_space):
        return "whose indices and whose buffer met is not recorded"
    table, buffer = _space(origin.table_space), _space(origin.buffer_space)
    if origin.table_space == origin.buffer_space:
        return f"table and buffer both belong to the {table} pool, so the index itself is wrong"
    return (
        f"the table ({origin.table_origin or 'origin not recorded'}) holds ids of the {table} pool, "
        f"the buffer ({origin.buffer_origin or 'origin not recorded'}) belongs to the {buffer} pool"
    )


def _space(space: str) -> str:
    return SPACE_NAMES.get(space, space)


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
