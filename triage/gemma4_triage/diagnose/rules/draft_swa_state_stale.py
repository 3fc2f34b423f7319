"""The seed bug: a draft's backend keeps the SWA state of the draft's own pool while it reads the target's."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, SPOILS_DRAFTS, Exclusion, Rule, Seen
from gemma4_triage.diagnose.start_up import start_up_evidence
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "draft-swa-state-stale"
_TRANSLATED_TABLE = "swa_page_table"
# Worked out by the probe, for the report only.
_WOULD_BE = "translated_page_table"


def find(incident: Incident) -> Finding | None:
    untranslated = _untranslated(incident, "draft")
    state = _state(incident)
    if not untranslated and not state:
        return None
    shown = _first_of_each_verdict(untranslated)
    return Finding(
        rule=ID,
        structure=Structure.SWA_TABLE,
        defect=Defect.OTHER_SPACE,
        cause=(
            "The draft's attention backend kept the SWA state of its own pool, which has no sliding-window part, so it "
            "reads the target's sliding-window buffer with full-pool page ids that nobody translated."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            *(evidence for dump in shown[:1] for evidence in _evidence(dump)),
            *(said(dump, "verdict", "the same table, later") for dump in shown[1:]),
            *state,
        ),
        advice=("Outputs stay right, because the target verifies them; accept length falls until a page id crashes.",),
        next_commands=(commands.serve(incident, "--patches default", "--debug 1"), "gemma4-triage repro e4b-trtllm"),
        fix="swa-state-swap",
        upstream=("SGLang 26957",),
    )


def _first_of_each_verdict(dumps: tuple[Dump, ...]) -> list[Dump]:
    return list({dump.manifest.verdict: dump for dump in reversed(dumps)}.values())[::-1]


def _evidence(dump: Dump) -> tuple[Evidence, ...]:
    found = [
        said(dump, "verdict", "what the probe concluded"),
        said(dump, "role", "it is the draft that reads"),
        said(dump, "provenance.table_space", "whose page ids the table holds"),
        said(dump, "provenance.buffer_space", "whose buffer they index"),
    ]
    if dump.manifest.offences:
        found.append(said(dump, "offences.0.value", "a page id, valid in the full pool"))
        found += _translation(dump, dump.manifest.offences[0])
    if _TRANSLATED_TABLE not in dump.manifest.tensors:
        found.append(said(dump, f"tensors.{_TRANSLATED_TABLE}", "no translated table was built: no SWA state"))
    return tuple(found)


def _translation(dump: Dump, first: Offence) -> list[Evidence]:
    # Containment puts the null page in the entry's place before the probe translates the table for its report.
    if _entry(dump, first.table, first) != first.value or _entry(dump, _WOULD_BE, first) is None:
        return []
    return [cell(dump, _WOULD_BE, (first.row, first.column), "what the full-to-SWA map makes of it")]


def _entry(dump: Dump, name: str, first: Offence) -> int | None:
    table = tensor_or_none(dump, name)
    if table is None or table.ndim != 2 or not (0 <= first.row < table.shape[0] and 0 <= first.column < table.shape[1]):
        return None
    return table[first.row, first.column].item()


def _untranslated(incident: Incident, role: str) -> tuple[Dump, ...]:
    return tuple(incident.of(rule=PAGE_TABLE, role=role, table_space="full", buffer_space="swa"))


def _state(incident: Incident) -> tuple[Evidence, ...]:
    return start_up_evidence(
        incident,
        "swa_state",
        lambda summary: summary.startswith("draft "),
        "the SWA state of the draft's backend, inside the pool swap",
    )


def _has_a_translated_table(seen: Seen) -> bool | None:
    """Return False where a dump has no second table, which a backend that translates has, or the state is known."""
    shown = _untranslated(seen.incident, "draft")
    if any(_TRANSLATED_TABLE in dump.manifest.provenance.table_origin for dump in shown):
        return True
    no_table = any(_TRANSLATED_TABLE not in dump.manifest.tensors for dump in shown)
    return False if shown and (no_table or _state(seen.incident)) else None


def _is_of_the_target_too(seen: Seen) -> bool:
    return bool(_untranslated(seen.incident, "target"))


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the dump has a swa_page_table that the sliding layers follow", _has_a_translated_table),
        Exclusion("the same is seen of the target: then its own translation is missing", _is_of_the_target_too),
    ),
    injected_by=("swa-state-stale",),
    leads_to=(*LEAVES_BUFFERS, *SPOILS_DRAFTS),
)
