"""A trace's tables to what is said about each device. Everything is a mean per step unless its name says otherwise."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gemma4_triage.step_profile.find_sequences import Found, find_sequences
from gemma4_triage.step_profile.gaps import find_idle
from gemma4_triage.step_profile.kernel_families import FAMILIES, OTHER, OUR_KERNELS, OURS, TITLES, family_of
from gemma4_triage.step_profile.layers import Layers, count_layers
from gemma4_triage.step_profile.steps import Cut, Step, cut_steps
from gemma4_triage.step_profile.trace_tables import Device, Launches, TraceTables

_KERNELS_NAMED = 8


@dataclass(frozen=True)
class Spread:
    median: float
    p10: float
    p90: float


@dataclass(frozen=True)
class KernelUse:
    name: str
    launches: float
    gpu_us: float


@dataclass(frozen=True)
class FamilyUse:
    """share: of the GPU time of all launches. kernels: those with most time; further: how many more names."""

    id: str
    title: str
    launches: float
    gpu_us: float
    share: float
    kernels: tuple[KernelUse, ...]
    further: int


@dataclass(frozen=True)
class NamedGap:
    """Gaps between launches of two names.

    Attributes:
        largest_us: one gap;
        idle_us: of all `count` per step between launches of these two names.
        after: "" where the trace ends.
    """

    largest_us: float
    count: float
    idle_us: float
    before: str
    after: str


@dataclass(frozen=True)
class IdleUse:
    """How long a device was idle.

    Attributes:
        host_share: of the steps' wall time.
        known: share of the gaps whose cause's call is in the trace.
        largest: one per pair of neighbours.
    """

    idle_us: float
    host_us: float
    host_share: float
    in_graph_us: float
    count: float
    known: float
    largest: tuple[NamedGap, ...]


@dataclass(frozen=True)
class HostWait:
    """One call's name: how often the host waited for a GPU in it, and for how long, per step."""

    name: str
    count: float
    us: float


@dataclass(frozen=True)
class ReplaceableUse:
    """What one op would replace.

    Attributes:
        matches, launches, gpu_us: of SGLang's own launches.
        present, present_us: launches of our kernel.
        saved_launches: all but one per match.
    """

    op: str
    what: str
    includes: str
    matches: float
    launches: float
    gpu_us: float
    share: float
    saved_launches: float
    present: float
    present_us: float


@dataclass(frozen=True)
class DeviceProfile:
    """What a device did.

    Attributes:
        kernel_us: the GPU time of all launches; above busy_us where they run at the same time.
        replaceable_us: of every launch that an op would replace, none twice.
    """

    device: str
    launches_in_trace: int
    streams: int
    method: str
    cut: Cut = field(repr=False)
    labels: tuple[str, ...]
    wall_us: Spread
    busy_us: Spread
    kernel_us: float
    launches: float
    layers: Layers
    families: tuple[FamilyUse, ...]
    idle: IdleUse
    waits: tuple[HostWait, ...]
    replaceable: tuple[ReplaceableUse, ...]
    replaceable_launches: float
    replaceable_us: float


def analyse(tables: TraceTables, layers: int | None = None, method: str | None = None) -> list[DeviceProfile]:
    """Return one profile per device, in the order of ranks and numbers.

    The model's `layers` are given where the caller knows them; `method` is one of anchors.METHODS, or None for the best
    that there is.
    """
    return [_analyse_device(tables, device, layers, method) for device in tables.devices]


def _analyse_device(tables: TraceTables, device: Device, layers: int | None, method: str | None) -> DeviceProfile:
    launches = tables.devices[device]
    cut = cut_steps(tables, device, method)
    steps, count = cut.chosen, len(cut.chosen)
    families = _families(launches, steps, tables.names)
    kernel_us = sum(family.gpu_us for family in families)
    idle = find_idle(launches, steps)
    replaced = find_sequences(launches, steps, tables.names)
    name_of = dict(enumerate(tables.names)) | {-1: ""}
    return DeviceProfile(
        device=device.title,
        launches_in_trace=len(launches),
        streams=len(np.unique(launches.stream)),
        method=cut.method,
        cut=cut,
        labels=tuple(sorted({step.anchor.label for step in steps if step.anchor is not None and step.anchor.label})),
        wall_us=_spread([step.wall_us for step in steps]),
        busy_us=_spread(idle.busy_us),
        kernel_us=kernel_us,
        launches=sum(step.launches for step in steps) / count,
        layers=count_layers(launches, steps[0], tables.names, layers),
        families=families,
        idle=IdleUse(
            idle_us=idle.idle_us / count,
            host_us=idle.host_us / count,
            host_share=idle.host_us / wall_us if (wall_us := sum(step.wall_us for step in steps)) else 0.0,
            in_graph_us=idle.in_graph_us / count,
            count=idle.count / count,
            known=idle.called_known / idle.count if idle.count else 0.0,
            largest=tuple(
                NamedGap(
                    gap.largest_us, gap.count / count, gap.idle_us / count, name_of[gap.before], name_of[gap.after]
                )
                for gap in idle.largest()
            ),
        ),
        waits=_waits(tables, device, steps),
        replaceable=tuple(_use(found, families, count, kernel_us) for found in replaced.ops),
        replaceable_launches=replaced.launches / count,
        replaceable_us=replaced.gpu_us / count,
    )


def _waits(tables: TraceTables, device: Device, steps: Sequence[Step]) -> tuple[HostWait, ...]:
    """Return the waits that began while a step ran, the most frequent first.

    Which step they were for does not matter: the host is ahead.
    """
    starts = [step.start_us for step in steps]
    counts: Counter[str] = Counter()
    times: defaultdict[str, float] = defaultdict(float)
    for wait in tables.waits:
        place = bisect_right(starts, wait.start_us) - 1
        if wait.rank == device.rank and place >= 0 and wait.start_us < steps[place].end_us:
            counts[wait.name] += 1
            times[wait.name] += wait.duration_us
    found = [HostWait(name, count / len(steps), times[name] / len(steps)) for name, count in counts.items()]
    return tuple(sorted(found, key=lambda wait: (-wait.count, wait.name)))


def _spread(values: Sequence[float]) -> Spread:
    p10, median, p90 = np.percentile(values, [10, 50, 90]).tolist()
    return Spread(median, p10, p90)


def _families(launches: Launches, steps: Sequence[Step], names: Sequence[str]) -> tuple[FamilyUse, ...]:
    """Return the families by GPU time; those without a launch are left out.

    Every launch of the steps is in one of them.
    """
    counts, times = np.zeros(len(names)), np.zeros(len(names))
    for step in steps:
        part = launches.part(slice(step.first, step.last))
        counts += np.bincount(part.name, minlength=len(names))
        times += np.bincount(part.name, weights=part.end_us - part.start_us, minlength=len(names))
    total = float(times.sum())
    members: dict[str, list[KernelUse]] = {family.id: [] for family in FAMILIES} | {OTHER: []}
    for name in map(int, np.flatnonzero(counts)):
        use = KernelUse(names[name], float(counts[name]) / len(steps), float(times[name]) / len(steps))
        members[family_of(names[name])].append(use)
    found = [_family(id, uses, total / len(steps)) for id, uses in members.items() if uses]
    return tuple(sorted(found, key=lambda family: (-family.gpu_us, family.id)))


def _family(id: str, uses: list[KernelUse], total_us: float) -> FamilyUse:
    uses = sorted(uses, key=lambda use: (-use.gpu_us, use.name))
    gpu_us = sum(use.gpu_us for use in uses)
    # Ours are few, and whether one is there matters however little it takes.
    named = uses if id == OURS else uses[:_KERNELS_NAMED]
    share = gpu_us / total_us if total_us else 0.0
    return FamilyUse(
        id, TITLES[id], sum(use.launches for use in uses), gpu_us, share, tuple(named), len(uses) - len(named)
    )


def _use(found: Found, families: Sequence[FamilyUse], steps: int, kernel_us: float) -> ReplaceableUse:
    present, present_us = defaultdict[str, float](float), defaultdict[str, float](float)
    for family in families:
        for kernel in family.kernels if family.id == OURS else ():
            present[OUR_KERNELS[kernel.name]] += kernel.launches
            present_us[OUR_KERNELS[kernel.name]] += kernel.gpu_us
    return ReplaceableUse(
        op=found.op,
        what=found.what,
        includes=found.includes,
        matches=found.matches / steps,
        launches=found.launches / steps,
        gpu_us=found.gpu_us / steps,
        share=found.gpu_us / steps / kernel_us if kernel_us else 0.0,
        saved_launches=(found.launches - found.matches) / steps,
        present=present[found.op],
        present_us=present_us[found.op],
    )
