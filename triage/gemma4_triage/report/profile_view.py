"""A step's profile on a terminal: how steps were found, what takes their time, and what our ops would replace."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from gemma4_triage.report.profile_document import device_names, per_layer
from gemma4_triage.step_profile.analyse import DeviceProfile, Spread
from gemma4_triage.step_profile.kernel_families import OTHER
from gemma4_triage.step_profile.trace_file import TraceFile
from gemma4_triage.step_profile.trace_tables import Counts
from gemma4_triage.terminal import add_row, plain_table, print_line, size_text

_NAME_WIDTH = 72
_METHODS = {
    "annotation": "ProfilerStep annotations",
    "graph": "launches of one CUDA graph",
    "span": "SGLang's step[...] spans",
    "pattern": "repetition of the launches",
    "whole": "no repetition found: the whole trace is taken for one step",
}


def print_profile(console: Console, trace: TraceFile, counts: Counts, profiles: Sequence[DeviceProfile]) -> None:
    """trace: read to its end."""
    print_line(console, trace.name, style="bold")
    names = f": {', '.join(sorted(set(device_names(trace))))}" if device_names(trace) else ""
    of = f"{counts.gpu} of {counts.total} events ({size_text(trace.size_bytes)})"
    print_line(console, f"  {of} are launches on a GPU{names}")
    if counts.malformed:
        print_line(console, f"  {counts.malformed} events of a GPU have no usable time, and are left out")
    for profile in profiles:
        _print_device(console, profile)


def _print_device(console: Console, profile: DeviceProfile) -> None:
    print_line(console, profile.device, style="bold")
    cut, layers = profile.cut, profile.layers
    labels = f", {', '.join(profile.labels)}" if profile.labels else ""
    print_line(console, f"  steps        {len(cut.chosen)}, by {_METHODS[profile.method]}{labels}")
    for why, count in cut.left_out.items():
        print_line(console, f"               {count} left out, {why}")
    if cut.before or cut.after:
        print_line(
            console, f"               {cut.before} launches before the first step and {cut.after} from the last on"
        )
    print_line(console, f"  wall         {_spread(profile.wall_us)}")
    print_line(
        console, f"  busy         {_spread(profile.busy_us)}; all launches by themselves {profile.kernel_us:.1f}"
    )
    _print_idle(console, profile)
    waits = ", ".join(f"{wait.count:.2f} {wait.name} ({wait.us:.1f} us)" for wait in profile.waits)
    print_line(console, f"  host waits   {waits or 'none recorded'}")
    print_line(console, f"  launches     {profile.launches:.1f} per step on {profile.streams} streams")
    known = per_layer(profile)
    said = "not known" if known is None else f"{layers.count}; {known:.1f} launches per layer of {layers.scope}"
    print_line(console, f"  layers       {said} ({layers.source})")
    _print_families(console, profile)
    _print_replaceable(console, profile)


def _print_idle(console: Console, profile: DeviceProfile) -> None:
    idle = profile.idle
    host = f"{idle.host_us:.1f} for the host ({idle.host_share:.1%} of the wall)"
    unknown = ""
    if idle.count and idle.known < 1:
        unknown = f"; the call behind {1 - idle.known:.0%} of the gaps is not in the trace"
    gaps = f"{idle.idle_us:.1f} us in {idle.count:.1f} gaps"
    print_line(console, f"  idle         {gaps}: {host}, {idle.in_graph_us:.1f} inside graphs{unknown}")
    for gap in idle.largest[:3]:
        after = f"before {_short(gap.after)}" if gap.after else "before the end"
        size = f"up to {gap.largest_us:.1f} us ({gap.count:g} times) after {_short(gap.before)}"
        print_line(console, f"               {size}, {after}")


def _print_families(console: Console, profile: DeviceProfile) -> None:
    table = plain_table("family", "us", "share", "launches", "most of it")
    for family in profile.families:
        row = (family.title, f"{family.gpu_us:.1f}", f"{family.share:.1%}", f"{family.launches:.1f}")
        add_row(table, *row, _short(family.kernels[0].name))
    total = sum(family.share for family in profile.families)
    add_row(table, "all", f"{profile.kernel_us:.1f}", f"{total:.1%}", f"{profile.launches:.1f}", "")
    console.print(table)
    for family in profile.families:
        if family.id == OTHER:
            print_line(console, "names that no family knows:")
            for kernel in family.kernels:
                said = f"  {kernel.gpu_us:.1f} us in {kernel.launches:.1f} launches: {_short(kernel.name)}"
                print_line(console, said)
            if family.further:
                print_line(console, f"  and {family.further} more")


def _print_replaceable(console: Console, profile: DeviceProfile) -> None:
    table = plain_table("op of ours", "found", "launches", "us", "share", "launches less", "already there")
    for use in profile.replaceable:
        there = f"{use.present:g} in {use.present_us:.1f} us" if use.present else "no"
        note = f" (with {use.includes})" if use.includes else ""
        row = (
            f"{use.matches:g}",
            f"{use.launches:g}",
            f"{use.gpu_us:.1f}",
            f"{use.share:.1%}",
            f"{use.saved_launches:g}",
        )
        add_row(table, use.op + note, *row, there)
    console.print(table)
    total = f"{profile.replaceable_launches:g} launches of {profile.replaceable_us:.1f} us per step"
    print_line(console, f"SGLang's own launches that these would replace, each counted once: {total}")


def _spread(spread: Spread) -> str:
    return f"{spread.median:.1f} us median ({spread.p10:.1f} p10, {spread.p90:.1f} p90)"


def _short(name: str) -> str:
    name = name.removeprefix("void ")
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"
