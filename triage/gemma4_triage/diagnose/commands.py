"""Commands that findings name. A test parses each one."""

from __future__ import annotations

import shlex

from gemma4_dumps.reader import Dump
from gemma4_runtime.catalog import CATALOG
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.launch import on_host_engine, server_arguments

DOCTOR = "gemma4-triage doctor"
PATCHES = "gemma4-triage patches"


def serve(incident: Incident, *options: str) -> str:
    """Start the server of this incident again, with its own arguments where anything says them."""
    engine = ("--host-engine",) if on_host_engine(incident) else ()
    return " ".join(("gemma4-triage serve", *engine, *options, "--", server_arguments(incident)))


def patches_with(fix: str) -> str:
    """Name the set of patches that has this fix: the default one, or that one with it."""
    return "default" if any(patch.id == fix and patch.default for patch in CATALOG) else f"default,+{fix}"


def corpus(fault: str) -> str:
    """Watch this fault being injected and caught on a CPU."""
    return f"gemma4-triage repro corpus --only {fault}"


def repro(scenario: str) -> str:
    """Watch this symptom with the fault, trapped, and gone, on a CPU."""
    return f"gemma4-triage repro {scenario}"


def audit(dump: Dump) -> str:
    """Show page by page: owner, sites, steps, equation."""
    return f"gemma4-triage audit {path_of(dump)}"


def show(dump: Dump) -> str:
    """Show a dump field by field."""
    return f"gemma4-triage dumps show {path_of(dump)}"


def path_of(dump: Dump) -> str:
    """Return how a command names a dump, quoted for a shell."""
    return named(dump.place)


def named(place: str) -> str:
    """Return a path as a word of a command: without a slash it is a name in the store, with a dash an option."""
    return shlex.quote(place if "/" in place and not place.startswith("-") else f"./{place}")
