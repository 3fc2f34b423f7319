"""Draw what host and GPU do in decode steps with MTP, from the traces in dumps/samples, as docs/mtp_timeline.svg.

    python docs/make_mtp_timeline.py

Neither torch nor a GPU is needed. The traces are recorded with gemma4_repro.bench.record_trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gemma4_triage.logs.source import Source
from gemma4_triage.report.svg_parts import GRID, MUTED, svg_document, svg_text
from gemma4_triage.step_profile.trace_file import TraceFile
from gemma4_triage.step_profile.trace_tables import Launches, Span, TraceTables, read_tables

DOCS = Path(__file__).parent
PICTURE = DOCS / "mtp_timeline.svg"
TRACES = {
    "MTP as SGLang 0.5.13 ships it": "e4b-mtp-shipped_h200_2026-11-22.trace.json.gz",
    "mtp-v2, overlapped": "e4b-mtp-v2_h200_2026-11-22.trace.json.gz",
}
SPAN_MS = 28.0
_WIDTH, _LEFT, _RIGHT, _TOP, _PANEL, _LANE = 960, 70, 16, 62, 106, 22
_STEP_COLOURS = {"DRAFT_LOOP": "#1f5fa8", "TARGET_VERIFY": "#1f7a4d"}
_OTHER, _WAIT = "#8a8f98", "#b3261e"
# Launches that follow each other so closely are one bar.
_JOINED_US = 20.0


def draw(samples: Path = DOCS.parent / "dumps" / "samples") -> str:
    traces = {title: TraceFile(Source(str(samples / name))) for title, name in TRACES.items()}
    tables = {title: read_tables(trace.events()) for title, trace in traces.items()}
    (about,) = {_about(trace.header) for trace in traces.values()}
    parts = [
        svg_text(12, 24, "Decode steps with MTP: host and GPU", 'font-size="16" font-weight="bold"'),
        svg_text(12, 44, about, f'fill="{MUTED}"'),
    ]
    for position, (title, table) in enumerate(tables.items()):
        parts += _Panel(table, _TOP + _PANEL * position).parts(title)
    bottom = _TOP + _PANEL * len(tables)
    return svg_document(_WIDTH, bottom + 44, 12, [*parts, *_legend(bottom + 8)], ["<title>MTP step timeline</title>"])


def _about(header: Mapping[str, Any]) -> str:
    """Return the same for traces that may be compared."""
    recorded, (device,) = header["gemma4_triage"], header["deviceProperties"]
    size, batch, attention = (recorded[name] for name in ("size", "batch", "attention"))
    return f"{device['name']}, dummy {size}, {batch} requests, attention on {attention}"


class _Panel:
    def __init__(self, tables: TraceTables, top: int) -> None:
        self._tables, self._top = tables, top
        ((self._device, self._launches),) = tables.devices.items()
        verify = [span.start_us for span in tables.spans if span.device == self._device and "VERIFY" in span.name]
        self._begin_us = min(verify)

    def parts(self, title: str) -> Iterator[str]:
        yield svg_text(12, self._top + 14, title, 'font-weight="bold"')
        host, gpu = self._top + 26, self._top + 26 + _LANE + 4
        for tick in range(0, int(SPAN_MS) + 1, 4):
            x = self._x(self._begin_us + tick * 1000)
            yield f'<line x1="{x}" y1="{host - 2}" x2="{x}" y2="{gpu + _LANE + 2}" stroke="{GRID}"/>'
            yield svg_text(x, gpu + _LANE + 15, f"{tick} ms", f'text-anchor="middle" font-size="10" fill="{MUTED}"')
        yield svg_text(24, host + 15, "host")
        yield svg_text(24, gpu + 15, "GPU")
        for span in self._steps(on_device=False):
            yield from self._bar(host, span.start_us, span.end_us, _colour(span))
        for wait in self._tables.waits:
            yield from self._bar(host + 5, wait.start_us, wait.start_us + wait.duration_us, _WAIT, _LANE - 10)
        for begin, end in _joined(self._launches):
            yield from self._bar(gpu, begin, end, _OTHER)
        for span in self._steps(on_device=True):
            yield from self._bar(gpu, span.start_us, span.end_us, _colour(span))

    def _steps(self, on_device: bool) -> list[Span]:
        return [span for span in self._tables.spans if (span.device is not None) == on_device]

    def _x(self, us: float) -> float:
        share = min(max((us - self._begin_us) / 1000 / SPAN_MS, 0), 1)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def _bar(self, y: int, begin_us: float, end_us: float, colour: str, height: int = _LANE) -> Iterator[str]:
        """Yield nothing where it lies outside the picture."""
        x0, x1 = self._x(begin_us), self._x(end_us)
        width = round(x1 - x0, 1)
        if width > 0:
            yield f'<rect x="{x0}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>'


def _joined(launches: Launches) -> list[tuple[float, float]]:
    """(begin, end) of what runs without a gap worth seeing."""
    order = np.argsort(launches.start_us)
    begins, ends = launches.start_us[order], np.maximum.accumulate(launches.end_us[order])
    gaps = np.flatnonzero(begins[1:] - ends[:-1] > _JOINED_US)
    return list(zip(begins[[0, *(gaps + 1)]], ends[[*gaps, len(ends) - 1]], strict=True))


def _colour(span: Span) -> str:
    return next((colour for name, colour in _STEP_COLOURS.items() if name in span.name), _OTHER)


def _legend(y: int) -> Iterator[str]:
    x = 12
    for colour, words in (
        (_STEP_COLOURS["DRAFT_LOOP"], "drafts"),
        (_STEP_COLOURS["TARGET_VERIFY"], "verification"),
        (_OTHER, "anything else on the GPU"),
        (_WAIT, "the host waits for the GPU"),
    ):
        yield f'<rect x="{x}" y="{y}" width="14" height="12" fill="{colour}"/>'
        yield svg_text(x + 20, y + 11, words)
        x += 40 + 7 * len(words)


if __name__ == "__main__":
    PICTURE.write_text(draw())
    print(f"Wrote {PICTURE.name}")
