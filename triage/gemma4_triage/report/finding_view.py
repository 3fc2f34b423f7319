"""A finding on a terminal: cause, confidence, evidence, what would rule it out, what to run next."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gemma4_triage.cli.output import printable
from gemma4_triage.diagnose.finding import Confidence, Finding

_STYLES = {Confidence.CERTAIN: "bold red", Confidence.LIKELY: "bold yellow", Confidence.POSSIBLE: "bold cyan"}


def print_finding(console: Console, finding: Finding) -> None:
    """In as many lines as it has parts; nothing is cut."""
    title = Text(finding.label.upper(), style="bold cyan" if finding.is_note else _STYLES[finding.confidence])
    title.append(f"  {printable(finding.rule)}", style="bold")
    _line(console, title)
    _line(console, Text(f"  {printable(finding.cause)}"))
    for evidence in finding.evidence:
        value = "" if evidence.value is None else f"  {evidence.value}"
        text = Text(printable(f"    {evidence.source}, {evidence.field}:{value}"))
        text.append(printable(f"  ({evidence.meaning})"), style="dim")
        _line(console, text)
    for observation in finding.ruled_out_if:
        _line(console, Text(printable(f"    ruled out if {observation}"), style="dim"))
    if finding.fix:
        upstream = f" ({', '.join(finding.upstream)})" if finding.upstream else ""
        _line(console, Text(printable(f"    fix: {finding.fix}{upstream}; GEMMA4_TRIAGE_PATCHES=default attaches it")))
    elif finding.upstream:
        _line(console, Text(printable(f"    see {', '.join(finding.upstream)}")))
    for command in finding.next_commands:
        _line(console, Text(printable(f"    next: {command}")))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
