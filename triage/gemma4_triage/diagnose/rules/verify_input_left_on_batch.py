"""After a round in which all requests finished, a batch has no draft input that could be merged or filtered."""

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import SHAPES, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "verify-input-left-on-batch"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=SHAPES, verdict="unusable_spec_info")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    verify_input = _is_verify_input(dump)
    all_finished = scalars.get("requests") == scalars.get("finished") and bool(scalars.get("requests"))
    return Finding(
        rule=ID,
        cause=(
            "The speculative worker handed a batch back with the input of the last verify instead of one for the next "
            "draft, and that can be neither merged nor filtered."
            if verify_input
            else "A batch's speculative state can be neither merged nor filtered: the worker did not leave an input "
            "for the next draft on it."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.spec_info", "what the batch carries"),
            said(dump, "site", "where SGLang needs more than that"),
            said(dump, "scalars.requests", "requests of the batch"),
            said(
                dump,
                "scalars.finished",
                "of them finished: a round in which all did" if all_finished else "of them finished",
            ),
        ),
        advice=(
            "The scheduler dies of a missing merge_batch as soon as a prefill joins such a batch.",
            "With the fix the server goes on where all requests of the batch have finished.",
            "FROZEN_KV_MTP before 0.5.13 did this. Look at what the worker installs when no request is left to draft.",
        ),
        next_commands=(
            commands.serve(incident, "--patches default", "--debug trap"),
            commands.corpus("unmergeable-spec-info"),
        ),
        fix="spec-info-guards",
        upstream=("SGLang 26859",),
    )


def _is_verify_input(dump: Dump) -> bool:
    """Return whether it is of a class of SGLang's that has neither."""
    return str(dump.manifest.scalars.get("spec_info")).endswith("VerifyInput")


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the state has merge_batch and filter_batch",
            in_dump(lambda dump: False if _is_verify_input(dump) else None),
        ),
    ),
    injected_by=("unmergeable-spec-info",),
    in_logs=("unmergeable-batch",),
)
