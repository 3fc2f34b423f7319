"""Commands that findings name. A test parses each one."""

from __future__ import annotations

import shlex

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.incident import Incident

_LAUNCHER = "launch_server.py"
_ANY_MODEL = "--model-path MODEL"
DOCTOR = "gemma4-triage doctor"
PATCHES = "gemma4-triage patches"


def serve(incident: Incident, *options: str) -> str:
    """Start the server of this incident again, with its own arguments where a dump has them."""
    return " ".join(("gemma4-triage serve", *options, "--", _server_arguments(incident)))


def corpus(fault: str) -> str:
    """Watch this fault being injected and caught on a CPU."""
    return f"gemma4-triage repro corpus --only {fault}"


def repro(scenario: str) -> str:
    """Watch this symptom with the fault, trapped, and gone, on a CPU."""
    return f"gemma4-triage repro {scenario}"


def audit(dump: Dump) -> str:
    """Page by page: owner, sites, steps, equation."""
    return f"gemma4-triage audit {_path(dump)}"


def show(dump: Dump) -> str:
    return f"gemma4-triage dumps show {_path(dump)}"


def _path(dump: Dump) -> str:
    text = dump.place
    # Without a slash it would be taken for a name in the store.
    return shlex.quote(text if "/" in text else f"./{text}")


def _server_arguments(incident: Incident) -> str:
    for dump in incident.dumps:
        first, *rest = dump.manifest.launch_args or ("",)
        if first.endswith(_LAUNCHER) and rest:
            return shlex.join(rest)
    return _ANY_MODEL
