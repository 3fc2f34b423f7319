"""What a patch is in a release of SGLang: it attaches, the release has it itself, or nobody has ported it, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gemma4_runtime.patch import Kind, Patch
from gemma4_runtime.releases import KNOWN, RUNNABLE, at_least, nearest
from gemma4_runtime.targets import TARGETS


class State(StrEnum):
    ATTACHES = "attaches"
    ABSORBED = "absorbed"
    NOT_PORTED = "not ported"
    LATER = "of a later release"


@dataclass(frozen=True)
class Standing:
    """What one patch is in one release.

    Attributes:
        state: Which of them.
        why: Where the release has it, or why it is not ported; empty if it attaches.
        missing: The target keys of the patch that the release's table does not have.
    """

    state: State
    why: str
    missing: tuple[str, ...] = ()


def standing(patch: Patch, release: str) -> Standing:
    """Look up what the catalog and the table of targets say of a patch in a release.

    Args:
        patch: Of the catalog.
        release: As PyPI names it, known or not.
    """
    if is_absorbed(patch, release):
        return Standing(State.ABSORBED, patch.absorbed)
    if release in RUNNABLE and at_least(release, patch.since) and at_least(patch.until, release):
        return Standing(State.ATTACHES, "")
    if not at_least(release, patch.since):
        return Standing(State.LATER, f"written for SGLang {patch.since} and later")
    table = TARGETS.get(release)
    if table is None:
        return Standing(State.NOT_PORTED, unknown(release))
    missing = tuple(dict.fromkeys(one.target for one in patch.attachments_in(release) if one.target not in table))
    without = f"SGLang {release} has no {', '.join(missing)}" if missing else ""
    first, _, words = patch.not_ported.partition(", ")
    known = words if words and at_least(release, first) else ""
    why = "; ".join(text for text in (known, without) if text) or "its tests have not run there yet"
    return Standing(State.NOT_PORTED, why, missing)


def counts(found: Iterable[Standing]) -> dict[str, int]:
    """Count how many are in each state, in the order of the states; of a later release only where there are any.

    Args:
        found: Of one release.
    """
    states = [one.state for one in found]
    return {state.value: states.count(state) for state in State if state is not State.LATER or state in states}


def is_absorbed(patch: Patch, release: str) -> bool:
    """Say whether a release has the patch itself, or no longer has what it is for."""
    return bool(patch.absorbed) and at_least(release, patch.absorbed.partition(",")[0].split()[0])


def releases_of(patch: Patch) -> list[str]:
    """Return the known releases to which it attaches."""
    return [release for release in KNOWN if standing(patch, release).state is State.ATTACHES]


def attaches_untested(patch: Patch, release: str) -> bool:
    """Say whether GEMMA4_TRIAGE_ALLOW_UNTESTED may attach a patch, as to the nearest release on which patches attach.

    Only a probe, which changes no answer, and only where nobody has shown what attaches.

    Args:
        patch: Of the catalog.
        release: Of SGLang.
    """
    if patch.kind is not Kind.PROBE or release in RUNNABLE:
        return False
    return standing(patch, nearest(release, RUNNABLE)).state is State.ATTACHES


def unknown(release: str) -> str:
    """Return the sentence for a release that is in no table: which is the nearest that is, and which patches run on."""
    known, runs = nearest(release), nearest(release, RUNNABLE)
    also = "" if runs == known else f", and the nearest on which patches run is {runs}"
    return f"SGLang {release} is not known; the nearest that is known is {known}{also}"


def way_out(release: str) -> str:
    """Return how a server can be watched beside a release that no patch runs on; empty for one that patches run on."""
    if release in RUNNABLE:
        return ""
    return (
        f"beside SGLang {release} probes alone may attach, as on {nearest(release, RUNNABLE)}: give serve "
        "--allow-untested --patches none, or set GEMMA4_TRIAGE_ALLOW_UNTESTED=1 and GEMMA4_TRIAGE_PATCHES=none"
    )


def refusal(patch: Patch, release: str) -> str:
    """Return the sentence for a server that asks for a patch which does not attach to its release; empty if it does."""
    found = standing(patch, release)
    if found.state is State.ATTACHES:
        return ""
    if found.state is State.ABSORBED:
        return f"patch {patch.id} is not for SGLang {release}, which has it: {found.why}"
    supported = ", ".join(releases_of(patch)) or f"{patch.since} to {patch.until}"
    return f"patch {patch.id} supports SGLang {supported}, and {release} is installed: {found.why}"
