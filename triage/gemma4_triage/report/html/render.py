"""Render a report. What the templates print is escaped, whatever it is; nothing in them is marked as safe."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from gemma4_dumps.wording import number_of
from gemma4_triage.report.html import shapes
from gemma4_triage.report.model.records import Report
from gemma4_triage.report.model.run_part import part_name
from gemma4_triage.report.model.text import code_spans
from gemma4_triage.threads import thread_url

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The page's Content-Security-Policy: should anything get past the escaping, it can neither run nor load."""


def render_html(report: Report) -> str:
    """Return one document. Equal reports give equal text."""
    return _environment().get_template("report.html.j2").render(report=report, policy=POLICY)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gemma4_triage.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"lines": shapes.lines, "gaps": shapes.gaps, "spans": code_spans, "thread_url": thread_url}
    environment.globals |= {
        "percent": shapes.percent,
        "share": shapes.share,
        "number_of": number_of,
        "part_name": part_name,
    }
    return environment
