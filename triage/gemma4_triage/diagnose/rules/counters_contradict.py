"""What a request counts as committed and as allocated does not fit together, and SGLang says so when it ends."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "counters-contradict"
_MESSAGE = "Unexpected overallocated KV cache, req.kv_committed_len="


def find(incident: Incident) -> Finding | None:
    """Return a finding where that assertion ended the scheduler."""
    dump = next(
        (one for one in incident.of(rule=PROCESS_END) if _MESSAGE in str(one.manifest.scalars.get("message"))), None
    )
    if dump is None:
        return None
    return Finding(
        rule=ID,
        structure=Structure.REQUEST_COUNTERS,
        cause=(
            "A request that ends counts more tokens as allocated than as committed, and nothing is allocated ahead on "
            "this server: one of the two counters is wrong."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.message", "SGLang's own assertion, with both counters"),
            said(dump, "scalars.traceback", "where the request ended"),
            said(dump, "step", "in which step"),
        ),
        advice=(
            "Look at what sets kv_committed_len and kv_allocated_len; the tensor `requests` has both of each request.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _drafts(dump: Dump) -> bool | None:
    """Return None where the launch does not say it: a server that was not launched by a command has no arguments."""
    named = any(argument.startswith("--speculative-algorithm") for argument in dump.manifest.launch_args)
    return True if named else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the server drafts: then tokens are allocated ahead of what is committed", in_dump(_drafts)),
    ),
    leads_to=("other-crash",),
)
