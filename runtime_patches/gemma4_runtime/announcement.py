"""What a start says of the patches that it has: the plugin in each process, and `gemma4-triage serve` before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemma4_runtime.patch import Kind, Patch
from gemma4_runtime.releases import BASE, RUNNABLE, nearest
from gemma4_runtime.selection import CLAMP, left_out, not_ported
from gemma4_runtime.settings import ALLOW_MISSING, HostEngine, Leak, Mode, Settings
from gemma4_runtime.standing import attaches_untested


@dataclass(frozen=True)
class Line:
    """One line of a start. loud: it must be seen, whatever the log level is."""

    text: str
    loud: bool = False


def lines(
    settings: Settings, patches: Sequence[Patch], missing: Mapping[str, str], release: str = BASE
) -> Iterator[Line]:
    """Yield what a server with these patches says at its start, the worst first.

    Args:
        settings: what was asked for.
        patches: those that are chosen.
        missing: probes among them that are not attached, id to reason.
        release: the release of SGLang that they are for.
    """
    of = {kind: [patch for patch in patches if patch.kind is kind and patch.id not in missing] for kind in Kind}
    for patch in of[Kind.FAULT]:
        yield Line(f"FAULT INJECTED: {patch.id}: {patch.title}. This server is broken on purpose.", loud=True)
    for id, reason in missing.items():
        yield Line(f"PROBE NOT ATTACHED: {id}: {reason}. {ALLOW_MISSING}=1 lets the server start.", loud=True)
    if settings.allow_untested and (untested := [patch for patch in patches if attaches_untested(patch, release)]):
        yield Line(
            f"UNTESTED on SGLang {release}: {_names(untested)} attach as on {nearest(release, RUNNABLE)}. A finding "
            "of theirs may be wrong, and every dump says so",
            loud=True,
        )
    if any(patch.id == CLAMP for patch in patches):
        yield Line(
            "CLAMP: pages out of range are read from the null page and their requests GO ON; replies that may be "
            "wrong have gemma4_degraded in their meta_info, /server_info counts them",
            loud=True,
        )
    if settings.mode is Mode.OFF:
        yield Line("probes: none, the mode is off")
    else:
        probes = _names(patch for patch in of[Kind.PROBE] if patch.asked_by == "mode")
        yield Line(f"probes: {probes} (mode {settings.mode.text})")
    for patch in left_out(settings):
        waits = "left out by contain, as it waits for the device in every step"
        yield Line(f"{waits}: {patch.id}; GEMMA4_TRIAGE_PROBES can name it")
    if unported := not_ported(settings, release):
        yield Line(f"not ported to SGLang {release}, and left out: {_names(unported)}", loud=True)
    if settings.leak is not Leak.OFF:
        audits = _names(patch for patch in of[Kind.PROBE] if patch.asked_by == "leak")
        yield Line(f"leak audit: {audits} ({settings.leak_text})")
    if settings.pool_seed:
        ages = _names(patch for patch in of[Kind.PROBE] if patch.asked_by == "age")
        yield Line(f"pools hand out their ids in shuffled orders: {ages} (seed {settings.pool_seed})")
    if settings.include:
        yield Line(f"DUMPS WILL HOLD {settings.include_text} of requests: treat them as confidential", loud=True)
    if settings.cost:
        yield Line("clocks on every hook of every probe; /server_info has the totals")
    yield Line(f"fixes: {_names(of[Kind.FIX])}")
    yield Line(f"optimisations: {_names(of[Kind.OPTIMISATION])}")
    if settings.host_engine is not HostEngine.OFF or of[Kind.HOST_LEAF]:
        leaves = of[Kind.HOST_LEAF]
        yield Line(
            f"HOST ENGINE, device model {settings.device_model.value}: CPU stand-ins replace {len(leaves)} CUDA-only "
            f"parts, slow and in fp32: {_names(leaves)}",
            loud=True,
        )


def _names(patches: Sequence[Patch] | Iterator[Patch]) -> str:
    return ", ".join(patch.id for patch in patches) or "none"
