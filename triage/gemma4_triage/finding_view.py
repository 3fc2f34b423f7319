"""A finding on a terminal: cause, confidence, evidence, what would rule it out, what to run next."""

from __future__ import annotations

from rich.console import Console

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.terminal import print_line
from gemma4_triage.threads import thread_url

_STYLES = {Confidence.CERTAIN: "bold red", Confidence.LIKELY: "bold yellow", Confidence.POSSIBLE: "bold cyan"}


def print_finding(console: Console, finding: Finding) -> None:
    """Print it in as many lines as it has parts; nothing is cut."""
    style = "bold cyan" if finding.is_note else _STYLES[finding.confidence]
    print_line(console, f"{finding.label.upper()}  {finding.rule}", style=style)
    print_line(console, f"  {finding.cause}")
    for evidence in finding.evidence:
        value = "" if evidence.value is None else f"  {evidence.value}"
        where = f"    {evidence.source}, {evidence.field}:{value}"
        print_line(console, where, (f"  ({evidence.meaning})", "dim"))
    for observation in finding.ruled_out_if:
        print_line(console, f"    ruled out if {observation}", style="dim")
    for step in finding.advice:
        print_line(console, f"    what to do: {step}")
    if finding.fix:
        print_line(console, f"    fix: {finding.fix}; GEMMA4_TRIAGE_PATCHES=default attaches it")
    for thread in finding.upstream:
        print_line(console, f"    see {thread}: {thread_url(thread)}")
    for command in finding.next_commands:
        print_line(console, f"    next: {command}")
