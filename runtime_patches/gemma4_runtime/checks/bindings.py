"""Check what attention layers read and write, at the start and against it. Plain values in, findings out.

At the start each layer id has buffers of its own, for keys and for values, and what it writes lies where it reads.
Later the layers read what they read at the start, as they did:

| what         | is another                                                                                     |
|--------------|------------------------------------------------------------------------------------------------|
| `pool`       | the pool that a model's layers read                                                            |
| `layer_id`   | the id that a layer indexes its pool with                                                      |
| `kv_buffer`  | the keys' or the values' buffer that the pool has for that id                                  |
| `window_left`| keys before the query's own that the layer shows                                               |
| `scaling`    | by what a layer scales its scores                                                              |
| `kv_scales`  | by what it multiplies the keys and values that it reads, where the pool keeps what it was given |

So does the prefix cache: its windows, by which it locks, matches and evicts, are those that it was made with.

Nothing of SGLang's changes these while it serves; what loads new weights may bring scales with them, and a pool of
another dtype than it is given has some. So every change is fatal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemma4_runtime.checks.geometry import NO_WINDOW, Finding, Severity

VERDICT = "geometry_mismatch"
SIDES = ("keys", "values")
Place = tuple[str, int]
"""Where something is read: as one of SIDES, of which layer."""
_WHY = "it was another at the start, and nothing changes it while a server serves"


@dataclass(frozen=True)
class Bound:
    """What one layer reads, and how.

    Attributes:
        role: `target` or `draft`.
        pool: Of the pool, its identity.
        layer_id: The id that it indexes the pool with.
        buffers: Addresses of the keys' and the values' buffer for that id; None where the pool does not say.
        window_left: Keys before the query's own, -1 for all of them.
        scaling: Of the scores.
        kv_scales: At which keys and values are read, as floats or None; None where these may change.
    """

    role: str
    pool: int
    layer_id: int
    buffers: tuple[int, int] | None
    window_left: int
    scaling: float
    kv_scales: tuple[float | None, float | None] | None


def check_apart(bound: Sequence[Bound]) -> Iterator[Finding]:
    """Yield a finding for each layer id that reads the keys or values of another, by the pool's own lookup.

    Args:
        bound: Every layer at the start. Layers of one id share its buffers.
    """
    firsts: dict[tuple[int, int, int], int] = {}
    seen: set[tuple[int, int]] = set()
    for one in bound:
        if one.buffers is None or (one.pool, one.layer_id) in seen:
            continue
        seen.add((one.pool, one.layer_id))
        others = [firsts.setdefault((one.pool, place, at), one.layer_id) for place, at in enumerate(one.buffers)]
        for what, other in zip(SIDES, others, strict=True):
            if other != one.layer_id:
                why = f"both layers' {what} lie in one buffer, or one of them reads the other's"
                yield _fatal("kv_buffer", f"the {what} of layer {other}", "its own", why, one)
                break


def check_stored(role: str, stored: Mapping[int, tuple[Place | None, Place | None]]) -> Iterator[Finding]:
    """Yield a finding for each layer whose keys or values do not lie where it reads them.

    Args:
        role: `target` or `draft`.
        stored: By layer id, where the keys and the values are read that were written for it; None: nowhere.
    """
    for layer, places in stored.items():
        for what, place in zip(SIDES, places, strict=True):
            if place != (what, layer):
                found = f"the {place[0]} of layer {place[1]}" if place is not None else f"no layer's {what}"
                why = f"a token's {what} were written for this layer, and it does not read them"
                yield _fatal("kv_store", found, "its own", why, Bound(role, 0, layer, None, NO_WINDOW, 1.0, None))
                break


def _fatal(what: str, found: str, expected: str, why: str, of: Bound) -> Finding:
    return Finding(VERDICT, Severity.FATAL, what, found, expected, why, of.role, (of.layer_id,))


def check_unchanged(before: Sequence[Bound], now: Sequence[Bound]) -> Iterator[Finding]:
    """Yield a finding for each way in which layers are bound otherwise than before; layers that are alike share one.

    Args:
        before: Every layer at the start.
        now: The same layers, in the same order.
    """
    groups: dict[tuple[str, str, int | str, int | str], list[int]] = {}
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        for what, found, expected in _differences(number, before, now) if new != old else ():
            groups.setdefault((old.role, what, found, expected), []).append(old.layer_id)
    for (role, what, found, expected), layers in groups.items():
        yield Finding(
            verdict=VERDICT,
            severity=Severity.FATAL,
            what=what,
            found=found,
            expected=f"{expected}, as at the start",
            why=_WHY,
            role=role,
            layers=tuple(layers),
        )


def check_windows(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding for each window of the scheduler or its prefix cache that is another than before.

    Args:
        before: At the start, by whose it is and its name.
        now: The same at this moment.
    """
    for name, expected in before.items():
        if (found := now.get(name, NO_WINDOW)) != expected:
            yield Finding(VERDICT, Severity.FATAL, name, found, f"{expected}, as at the start", _WHY)


def _differences(
    number: int, before: Sequence[Bound], now: Sequence[Bound]
) -> Iterator[tuple[str, int | str, int | str]]:
    old, new = before[number], now[number]
    if new.pool != old.pool:
        yield "pool", f"{new.pool:x}", f"{old.pool:x}"
        return
    if new.layer_id != old.layer_id:
        yield "layer_id", new.layer_id, old.layer_id
    elif new.buffers != old.buffers:
        yield "kv_buffer", _whose(number, before, now), "its own"
    for what in ("window_left", "scaling", "kv_scales"):
        found, expected = getattr(new, what), getattr(old, what)
        if found != expected:
            yield what, _plain(found), _plain(expected)


def _whose(number: int, before: Sequence[Bound], now: Sequence[Bound]) -> str:
    """Say which layers had the buffers that layer `number` has now."""
    old, new = before[number].buffers or (), now[number].buffers or ()
    if sorted(new) == sorted(old):
        return "its keys and values exchanged"
    changed = [place for place, (one, other) in enumerate(zip(new, old, strict=False)) if one != other]
    owners = {
        one.layer_id: other
        for one, other in zip(before, now, strict=True)
        if one.buffers and all(new[place] == one.buffers[place] for place in changed)
    }
    if not owners:
        return "one of no layer"
    layer, other = next(iter(owners.items()))
    exchanged = other.buffers is not None and all(other.buffers[place] == old[place] for place in changed)
    return f"{'exchanged with that' if exchanged else 'that'} of layer {layer}"


def _plain(value: float | int | tuple[float | None, float | None] | None) -> int | str:
    if isinstance(value, tuple):
        return " and ".join("1" if one is None else f"{one:g}" for one in value)
    return value if isinstance(value, int) else f"{value:g}" if value is not None else "none"
