"""Requests that two pools hold, over the ratio between them, as one SVG without outside references."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_runtime.pools.demand import Fit
from gemma4_triage.pools.as_written import gib_text
from gemma4_triage.pools.plan import Plan
from gemma4_triage.report.svg_parts import svg_document, svg_text

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 430, 64, 24, 70, 66
_FULL, _SWA, _BOTH, _MARK = "#2f5d8a", "#b26a00", "#1c1f23", "#b3261e"
_HEADROOM = 1.4


def draw(plan: Plan) -> str:
    """plan: with a workload. Raises ValueError without one."""
    need, recommended, default = plan.need, plan.recommended, plan.default
    if need is None or recommended is None or default is None:
        raise ValueError("a plan without a workload has no curve")
    scale = _Scale(_HEADROOM * max(recommended.requests, need.requests, 1))
    parts = [*_title(plan), *_axes(scale), *_wanted(scale, need.requests)]
    parts.append(_curve(scale, plan.curve, [one.full_requests for one in plan.curve], _FULL, 'stroke-dasharray="5 4"'))
    parts.append(_curve(scale, plan.curve, [one.swa_requests for one in plan.curve], _SWA, 'stroke-dasharray="5 4"'))
    parts.append(_curve(scale, plan.curve, [one.requests for one in plan.curve], _BOTH, 'stroke-width="3"'))
    parts += _mark(scale, default, "SGLang's default", "#555b63", 12)
    parts += _mark(scale, recommended, "recommended", _MARK, 26)
    if plan.asked is not None and plan.asked.sizes.ratio != default.sizes.ratio:
        parts += _mark(scale, plan.asked, "asked", "#555b63", 40)
    return svg_document(_WIDTH, _HEIGHT, 12, parts)


class _Scale:
    """Ratio and requests to pixels."""

    def __init__(self, top: float) -> None:
        self.top = top

    def x(self, ratio: float) -> float:
        return round(_LEFT + ratio * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, requests: float) -> float:
        return round(_HEIGHT - _BOTTOM - requests / self.top * (_HEIGHT - _TOP - _BOTTOM), 1)


def _title(plan: Plan) -> Iterator[str]:
    loads = " and ".join(map(str, plan.workloads))
    yield svg_text(
        12, 24, f"Requests of {loads} at once, over the ratio of the pools", 'font-size="16" font-weight="bold"'
    )
    about = f"{plan.shape.name}; {gib_text(plan.available_bytes)} for pools on one GPU; page {plan.serving.page_size}"
    yield svg_text(12, 44, about, 'fill="#555b63"')
    for x, colour, words in (
        (_LEFT, _FULL, "full pool holds"),
        (190, _SWA, "SWA pool holds"),
        (310, _BOTH, "both hold"),
    ):
        yield svg_text(x, _HEIGHT - 12, words, f'fill="{colour}" font-weight="bold"')


def _axes(scale: _Scale) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    for tenth in range(0, 11, 2):
        x = scale.x(tenth / 10)
        yield f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}" stroke="#e3e5e8"/>'
        yield svg_text(x, bottom + 16, f"{tenth / 10:g}", 'text-anchor="middle" fill="#555b63"')
    for step in range(5):
        value = round(scale.top * step / 4)
        y = scale.y(value)
        yield f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#e3e5e8"/>'
        yield svg_text(_LEFT - 8, y + 4, str(value), 'text-anchor="end" fill="#555b63"')
    yield svg_text(scale.x(0.5), bottom + 32, "--swa-full-tokens-ratio", 'text-anchor="middle" fill="#555b63"')


def _wanted(scale: _Scale, requests: int) -> Iterator[str]:
    y = scale.y(requests)
    yield f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#2f6f4f" stroke-dasharray="2 3"/>'
    yield svg_text(_WIDTH - _RIGHT, y - 5, f"{requests} asked for", 'text-anchor="end" fill="#2f6f4f"')


def _curve(scale: _Scale, curve: tuple[Fit, ...], values: list[int], colour: str, more: str) -> str:
    inside = [(one.sizes.ratio, value) for one, value in zip(curve, values, strict=True) if value <= scale.top]
    points = " ".join(f"{scale.x(ratio)},{scale.y(value)}" for ratio, value in inside)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" {more}/>'


def _mark(scale: _Scale, one: Fit, words: str, colour: str, down: int) -> Iterator[str]:
    x, y = scale.x(one.sizes.ratio), scale.y(one.requests)
    anchor = "end" if one.sizes.ratio > 0.6 else "start"
    shift = -8 if anchor == "end" else 8
    yield f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{_HEIGHT - _BOTTOM}" stroke="{colour}"/>'
    yield f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>'
    label = f"{words} {one.sizes.ratio:g}: {one.requests}"
    yield svg_text(x + shift, _TOP + down, label, f'text-anchor="{anchor}" fill="{colour}"')
