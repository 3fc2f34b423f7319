"""Check what a server has been put together from: pools, layers, windows, backends. Plain values in, findings out.

| rule                                                                                      | verdict           |
|-------------------------------------------------------------------------------------------|-------------------|
| draft and target: one allocator, one request table, equal page size                       | geometry_mismatch |
| ... and, where the draft reads the target's KV, equal context, KV dtype and window        | geometry_mismatch |
| every layer's id is in the pool that it reads, in the sub-pool of its type                | geometry_mismatch |
| a layer's KV heads and K and V head dims are the pool's                                   | geometry_mismatch |
| every node of a draft's backend reads the pool that it is meant to read                   | geometry_mismatch |
| ... and translates page ids exactly if that pool is an SWA pool (advice)                  | swa_state         |
| a sliding layer sees W keys, a full layer all (one key more in all of them: advice)       | window_width      |
| a draft layer is bound to the target's layer that its configuration says                  | geometry_mismatch |
| a layer of the target reads its own KV, or that of the layer which its configuration says | geometry_mismatch |
| a layer's scores are scaled as the model's configuration says                             | geometry_mismatch |
| a draft layer reads keys and values at the scales that they were written with (advice)    | geometry_mismatch |
| a pool that a draft reads has a slot for whatever the allocator hands out                 | pool_too_small    |
| ... and the target's pool exactly as many (fewer: advice)                                 | geometry_mismatch |
| layers multiply by nothing what they read from a pool that keeps what it was given (advice)| geometry_mismatch |
| the SWA pool can admit a request at all, and the longest one (note)                       | pool_too_small    |
| the SWA pool is no larger than the full pool (note)                                       | geometry_mismatch |

What names no severity is fatal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

NO_WINDOW = -1


class Severity(StrEnum):
    """How much a finding matters.

    `fatal` stops a server in trap mode, `advice` does not: a release ships it, or another probe traps the access.
    `note` is no defect of the server: what some requests will meet with the sizes that were chosen.
    """

    FATAL = "fatal"
    ADVICE = "advice"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """`what` differs: `found` against `expected`, both in words or numbers; `layers` are bound layer ids, if any."""

    verdict: str
    severity: Severity
    what: str
    found: int | str
    expected: str
    why: str
    role: str | None = None
    layers: tuple[int, ...] = ()

    @property
    def summary(self) -> str:
        where = f", layers {', '.join(map(str, self.layers))}" if self.layers else ""
        role = f"{self.role} " if self.role else ""
        return f"{role}{self.what}{where}: found {self.found}, expected {self.expected}"


@dataclass(frozen=True)
class Shared:
    """What a draft must have in common with its target. Objects stand as "Type@id"; sizes in tokens."""

    allocator: str
    request_table: str
    page_size: int
    context_length: int
    kv_dtype: str
    sliding_window: int


@dataclass(frozen=True)
class Layer:
    """One attention layer.

    Attributes:
        layer_id: As bound: the id that it indexes its pool with.
        type: `sliding` or `full`.
        kv_heads: How many key heads it has.
        k_dim: Of a key.
        v_dim: Of a value.
        window_left: Keys before the query's own that the kernel shows, -1 for all of them.
        config_window: Keys that the model's configuration shows, the query's own included; None if this model's
            convention is not known.
        scaling: Of the scores.
        config_scaling: What the model's configuration says of it; None if that is not known.
        kv_scales: At which keys and values are read, 1.0 where nothing else is said.
        config_source: The layer whose keys and values it reads, as the model's configuration says; None if that is
            not known.
    """

    layer_id: int
    type: str
    kv_heads: int
    k_dim: int
    v_dim: int
    window_left: int
    config_window: int | None
    scaling: float = 1.0
    config_scaling: float | None = None
    kv_scales: tuple[float, float] = (1.0, 1.0)
    config_source: int | None = None


@dataclass(frozen=True)
class SubPool:
    """slots: what may be addressed, the dummy page not counted. None where this kind of pool does not say."""

    slots: int
    kv_heads: int | None
    k_dim: int | None
    v_dim: int | None


@dataclass(frozen=True)
class Pool:
    """One KV pool.

    Attributes:
        name: "Type@id".
        parts: `sliding` and `full` of an SWA pool, `all` of a plain one.
        places: Layer id to part; None for a kind of pool whose layers are not known here.
    """

    name: str
    parts: dict[str, SubPool]
    places: dict[int, str] | None

    @property
    def is_swa(self) -> bool:
        return "sliding" in self.parts


@dataclass(frozen=True)
class Node:
    """One node of an attention backend, as it stands at `site`.

    Attributes:
        site: Where it was looked at.
        path: Its place in the backend.
        pool: What it reads.
        swa_state: The pool that it translates page ids for, "" if it translates none, None if this kind of backend
            keeps no such state.
    """

    site: str
    path: str
    pool: Pool
    swa_state: str | None


@dataclass(frozen=True)
class SwaRoom:
    """What an SWA pool has and what requests need of it, in tokens.

    Attributes:
        swa_slots: Of the SWA pool.
        full_slots: Of the full pool.
        page_size: Of both.
        window: As the prefix cache counts it.
        chunk: The largest prefill at once, None for unlimited.
        longest_input: The longest prompt that the server accepts.
    """

    swa_slots: int
    full_slots: int
    page_size: int
    window: int
    chunk: int | None
    longest_input: int


def check_shared(target: Shared, draft: Shared, reads_target_kv: bool) -> Iterator[Finding]:
    """Yield one finding per field that differs. A draft with KV of its own has its own dtype, window and context."""
    for field in fields(Shared):
        wanted, found = getattr(target, field.name), getattr(draft, field.name)
        if wanted != found and (reads_target_kv or field.name in _ALWAYS_SHARED):
            yield _mismatch(field.name, found, f"{wanted}, as the target has it", _WHY[field.name], "draft")


def check_layers(role: str, layers: Iterable[Layer], pool: Pool) -> Iterator[Finding]:
    """Check that `pool` has each layer, in its type's sub-pool, with its heads and dims; alike ones are one finding."""
    if pool.places is None:
        return
    groups: dict[tuple[str, int | str, str, str], list[int]] = {}
    for layer in layers:
        for difference in _layer_differences(layer, pool):
            groups.setdefault(difference, []).append(layer.layer_id)
    for (what, found, expected, why), ids in groups.items():
        yield _mismatch(what, found, expected, why, role, tuple(sorted(set(ids))))


def _layer_differences(layer: Layer, pool: Pool) -> Iterator[tuple[str, int | str, str, str]]:
    place = (pool.places or {}).get(layer.layer_id)
    if place is None:
        has = f"one of {sorted(pool.places or {})}"
        yield "layer_id", layer.layer_id, has, f"{pool.name} holds no such layer: its lookup fails at the first read"
        return
    if pool.is_swa and place != layer.type:
        yield "sub_pool", place, layer.type, f"{pool.name} keeps this layer in the other sub-pool, with other page ids"
    part = pool.parts[place]
    for name in ("kv_heads", "k_dim", "v_dim"):
        wanted, found = getattr(part, name), getattr(layer, name)
        if wanted is not None and found != wanted:
            yield name, found, f"{wanted}, as {pool.name} ({place}) has it", "the kernel would read across rows"


def check_windows(role: str, layers: Iterable[Layer], beside: Iterable[Layer] = ()) -> Iterator[Finding]:
    """Check that each layer sees the keys that its configuration says, in kernels' convention: W - 1 before its own.

    One key too many in every sliding layer is what SGLang up to 0.5.22 ships for Gemma-4 (fix `swa-window-width`),
    hence advice; in some of them it is a fault of this server.

    Args:
        role: `target` or `draft`.
        layers: of this model.
        beside: of the model that it is served with.
    """
    layers = tuple(layers)
    sliding = [layer for layer in (*layers, *beside) if layer.config_window is not None and layer.type == "sliding"]
    alike = len({layer.window_left for layer in sliding}) == 1
    groups: dict[tuple[int, int], list[int]] = {}
    for layer in layers:
        if layer.config_window is not None:
            wanted = layer.config_window - 1 if layer.type == "sliding" else NO_WINDOW
            if layer.window_left != wanted:
                groups.setdefault((layer.window_left, wanted), []).append(layer.layer_id)
    for (found, wanted), ids in groups.items():
        one_more = wanted != NO_WINDOW and found == wanted + 1
        shipped = one_more and alike
        yield Finding(
            verdict="window_width",
            severity=Severity.ADVICE if shipped else Severity.FATAL,
            what="window_left",
            found=found,
            expected=f"{wanted}, as the other layers have it" if one_more and not shipped else str(wanted),
            why=f"kernels show window_left + 1 keys: {_keys(found)} here, {_keys(wanted)} in the model's configuration",
            role=role,
            layers=tuple(sorted(set(ids))),
        )


def check_scales(role: str, layers: Iterable[Layer]) -> Iterator[Finding]:
    """Check that each layer scales its scores as its configuration says."""
    groups: dict[tuple[float, float], list[int]] = {}
    for layer in layers:
        if layer.config_scaling is not None and layer.scaling != layer.config_scaling:
            groups.setdefault((layer.scaling, layer.config_scaling), []).append(layer.layer_id)
    for (found, wanted), ids in groups.items():
        why = "every score of these layers is multiplied by another number than the model was trained with"
        yield _mismatch("scaling", f"{found:g}", f"{wanted:g}", why, role, tuple(sorted(set(ids))))


def check_bindings(layers: Iterable[Layer], owners: Mapping[str, Layer]) -> Iterator[Finding]:
    """Check that each layer of a frozen draft reads what the configurations say, at the scales of whoever writes it.

    A wrong one of the right type stays in range, and fewer drafts are accepted.

    Args:
        layers: of the draft.
        owners: by type, the target's layer that owns the keys of its last layer of that type.
    """
    layers = tuple(layers)
    groups: dict[tuple[int, int, str], int] = {}
    for layer in layers:
        if (owner := owners.get(layer.type)) is not None and layer.layer_id != owner.layer_id:
            group = (layer.layer_id, owner.layer_id, layer.type)
            groups[group] = groups.get(group, 0) + 1
    for (found, wanted, kind), count in groups.items():
        yield _mismatch(
            "bound_layer",
            found,
            f"{wanted}, whose KV the target's last {kind} layer reads",
            f"{count} {kind} {'layer' if count == 1 else 'layers'} of the draft would read another layer's keys and "
            "values: in range they only lower the accept length",
            "draft",
            (found,),
        )
    for layer in layers:
        owner = owners.get(layer.type)
        if owner is not None and layer.layer_id == owner.layer_id and layer.kv_scales != owner.kv_scales:
            yield Finding(
                verdict="geometry_mismatch",
                severity=Severity.ADVICE,
                what="kv_scales",
                found=_scales(layer),
                expected=f"{_scales(owner)}, as the target writes them",
                why="the draft reads the target's keys and values at other scales; fewer drafts are accepted",
                role="draft",
                layers=(layer.layer_id,),
            )


def check_sources(role: str, layers: Iterable[Layer]) -> Iterator[Finding]:
    """Check that each layer reads the keys and values of the layer that its configuration says, itself or another.

    A wrong one of the right type stays in range, and only answers are wrong.
    """
    groups: dict[tuple[int, int, str], int] = {}
    for layer in layers:
        if layer.config_source is not None and layer.layer_id != layer.config_source:
            group = layer.layer_id, layer.config_source, layer.type
            groups[group] = groups.get(group, 0) + 1
    for (found, wanted, kind), count in groups.items():
        yield _mismatch(
            "bound_layer",
            found,
            f"{wanted}, as the model's configuration says",
            f"{count} {kind} {'layer reads' if count == 1 else 'layers read'} another layer's keys and values",
            role,
            (found,),
        )


def check_kv_scales(role: str, layers: Iterable[Layer], kv_dtype: str) -> Iterator[Finding]:
    """Check that no layer multiplies keys or values that a pool of wider floats keeps as they were given to it.

    SGLang divides by a scale only what it stores in another type than it was given.

    Args:
        role: `target` or `draft`.
        layers: of this model.
        kv_dtype: of its pool.
    """
    if not kv_dtype.endswith(("float32", "float16", "bfloat16")):
        return
    groups: dict[str, list[int]] = {}
    for layer in layers:
        if layer.kv_scales != (1.0, 1.0):
            groups.setdefault(_scales(layer), []).append(layer.layer_id)
    for found, ids in groups.items():
        yield Finding(
            verdict="geometry_mismatch",
            severity=Severity.ADVICE,
            what="kv_scales",
            found=found,
            expected=f"1 and 1, since a pool of {kv_dtype} keeps what it is given",
            why="kernels that heed these scales multiply keys and values that nothing was divided by",
            role=role,
            layers=tuple(sorted(set(ids))),
        )


def check_handed_out(pool: Pool, slots: dict[str, tuple[int, ...]], page_size: int) -> Iterator[Finding]:
    """Check that the target's allocator has as many slots as the pool has buffers for.

    Args:
        pool: The target's.
        slots: By `full` and `sliding`, what the allocator says of its size, in all of its words for it.
        page_size: The allocator's.
    """
    for name, part in pool.parts.items():
        said = slots.get("full" if name == "all" else name, ())
        for found in dict.fromkeys(one for one in said if one != part.slots):
            beyond = found > part.slots
            yield Finding(
                verdict="geometry_mismatch",
                severity=Severity.FATAL if beyond else Severity.ADVICE,
                what=f"allocator_slots_{name}",
                found=found,
                expected=f"{part.slots}, in pages of {page_size}, as {pool.name} has buffers for",
                why="the last pages that it hands out are beyond the buffers" if beyond else "the rest is never used",
                role="target",
            )


def _scales(layer: Layer) -> str:
    return " and ".join(f"{scale:g}" for scale in layer.kv_scales)


def _keys(window_left: int) -> str:
    return "all" if window_left == NO_WINDOW else str(window_left + 1)


def check_nodes(
    nodes: Iterable[Node], meant: Pool, layers: Iterable[Layer], slots: dict[str, int]
) -> Iterator[Finding]:
    """Check that every node of a draft's backend reads the pool that it is meant to, and that this serves the draft.

    Args:
        nodes: of all sites.
        meant: the target's pool for a frozen draft, else the draft's own.
        layers: of the draft.
        slots: `full` and, with an SWA allocator, `sliding`: what it hands out. It is the target's, and the pool has to
            have as many of each kind as it has at all.
    """
    layers = tuple(layers)
    left_behind: dict[str, list[Node]] = {}
    stale: dict[str, list[Node]] = {}
    for node in nodes:
        if node.pool.name != meant.name:
            left_behind.setdefault(f"{node.pool.name} ({_size(node.pool)} slots)", []).append(node)
        elif node.swa_state is not None and node.swa_state != _swa_state(meant):
            stale.setdefault(node.swa_state or "none", []).append(node)
    for pool, held in left_behind.items():
        yield _mismatch(
            "pool",
            f"{pool} on {_where(held)}",
            f"{meant.name} ({_size(meant)} slots)",
            "a pool swap left this behind: another pool is indexed with the layer ids and page ids of the one meant",
            "draft",
        )
    for state, held in stale.items():
        yield Finding(
            verdict="swa_state",
            severity=Severity.ADVICE,
            what="swa_state",
            found=f"{state} on {_where(held)}",
            expected=_swa_state(meant) or "none",
            why="page ids of sliding layers go untranslated, or twice; `page-table` traps the first bad one",
            role="draft",
        )
    yield from check_layers("draft", layers, meant)
    yield from _check_slots(meant, slots)


def _where(nodes: list[Node]) -> str:
    paths, sites = dict.fromkeys(node.path for node in nodes), dict.fromkeys(node.site for node in nodes)
    return f"{', '.join(paths)} inside {', '.join(sites)}"


def _swa_state(pool: Pool) -> str:
    return pool.name if pool.is_swa else ""


def _size(pool: Pool) -> str:
    return " + ".join(str(part.slots) for part in pool.parts.values())


def _check_slots(pool: Pool, slots: dict[str, int]) -> Iterator[Finding]:
    for name, part in pool.parts.items():
        needed = slots.get("full" if name == "all" else name, 0)
        if part.slots < needed:
            yield Finding(
                verdict="pool_too_small",
                severity=Severity.FATAL,
                what=f"slots_{name}",
                found=part.slots,
                expected=f"at least {needed}, which the allocator hands out",
                why=f"the draft indexes {pool.name} with the target's slots, and would leave it (SGLang issue 17630)",
                role="draft",
            )


def check_swa_room(room: SwaRoom) -> Iterator[Finding]:
    """Check that SGLang's admission test, `max(input of a step, window) + page < free SWA slots`, can hold."""
    least = room.window + room.page_size
    step = room.longest_input if room.chunk is None else min(room.chunk, room.longest_input)
    longest = max(step, room.window) + room.page_size
    if room.swa_slots <= least:
        yield _too_small(room, Severity.FATAL, least, f"window {room.window} + page {room.page_size}", "no request")
    elif room.swa_slots <= longest:
        sides = f"longest prefill step {step} (chunk {room.chunk}, input {room.longest_input}) + page {room.page_size}"
        yield _too_small(
            room, Severity.NOTE, longest, sides, f"no input of {room.swa_slots - room.page_size} tokens or more"
        )
    if 0 < room.full_slots < room.swa_slots:
        yield Finding(
            verdict="geometry_mismatch",
            severity=Severity.NOTE,
            what="swa_ratio",
            found=room.swa_slots,
            expected=f"at most {room.full_slots}, as many as full slots",
            why="every SWA slot serves a full slot, so what is above can never be used: --swa-full-tokens-ratio over 1",
        )


def _too_small(room: SwaRoom, severity: Severity, bound: int, sides: str, who: str) -> Finding:
    return Finding(
        verdict="pool_too_small",
        severity=severity,
        what="swa_slots",
        found=room.swa_slots,
        expected=f"more than {bound} = {sides}",
        why=f"SGLang admits {who}: it waits in the queue for ever. Raise --swa-full-tokens-ratio or the pool",
    )


_ALWAYS_SHARED = ("allocator", "request_table", "page_size")
_WHY = {
    "allocator": "slots that one allocator gives out are free in the other's eyes",
    "request_table": "the draft would look its requests up in rows that nobody writes",
    "page_size": "page ids of the one are no page ids of the other",
    "context_length": "the draft's page tables are too narrow, or its positions end before the target's",
    "kv_dtype": "the draft would read the target's KV as another type",
    "sliding_window": "metadata of sliding layers is built for another window than the target keeps",
}


def _mismatch(what: str, found: int | str, expected: str, why: str, role: str, layers: tuple[int, ...] = ()) -> Finding:
    return Finding("geometry_mismatch", Severity.FATAL, what, found, expected, why, role, layers)
