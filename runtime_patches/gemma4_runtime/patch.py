"""The record of a patch, and what no two may claim: plain data that anything may read, without torch and sglang."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from gemma4_runtime.errors import PatchConflict
from gemma4_runtime.releases import BASE


class Kind(StrEnum):
    HOST_LEAF = "host leaf"
    FAULT = "fault"
    FIX = "fix"
    OPTIMISATION = "optimisation"
    PROBE = "probe"


# Hooks on one target nest in the order of registration, so a probe, registered last, sees what all others made of it.
ATTACH_ORDER = tuple(Kind)

# Origins and upstream states that entries of several kinds share.
SEED = "SGLang pull requests for Gemma-4 on trtllm_mha with MTP"
NO_UPSTREAM = "not upstream up to 0.5.23"


class How(StrEnum):
    """How a hook meets SGLang's function; the values are those of sglang's HookType."""

    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


@dataclass(frozen=True)
class Hook:
    """Attach `implementation` ("module:function") to the SGLang function behind the target key.

    `releases`: the releases of SGLang that have this place; empty: every release of the patch.
    """

    target: str
    how: How
    implementation: str
    releases: tuple[str, ...] = ()

    @property
    def exclusive(self) -> bool:
        return self.how is How.REPLACE


@dataclass(frozen=True)
class Edit:
    """Replace one unique run of source lines inside the function behind the target key, through source_patcher."""

    target: str
    match: str
    replacement: str
    releases: tuple[str, ...] = ()

    exclusive = True


@dataclass(frozen=True)
class Bind:
    """Set one module attribute, which may not exist yet. For CUDA-only names that a CPU build never defines."""

    target: str
    implementation: str
    releases: tuple[str, ...] = ()

    exclusive = True


Attachment = Hook | Edit | Bind


@dataclass(frozen=True)
class About:
    """What an engineer asks of a patch before switching it on; `gemma4-triage patches explain` prints it.

    `why`: the defect or the cost that it is about. `eligibility`: where it acts. `fallback`: what happens elsewhere.
    `proof`: what shows that it works, as paths from the repository's root, with `::name` for one test or one word of a
    file. `switches`: variables that it reads, beside its knob's and those that every patch of its kind has.
    """

    why: str
    eligibility: str
    fallback: str
    proof: tuple[str, ...]
    switches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patch:
    """Anything the plugin can attach.

    `origin` names the issue or pull request it comes from, `upstream` where SGLang has it, `default` whether
    `GEMMA4_TRIAGE_PATCHES=default` includes it.
    `since`, `until`: the first and the last release of SGLang that it was written and tested for.
    `absorbed`: from which release on SGLang has it itself, or no longer has what it is for, and where: "0.5.14, file".
    `not_ported`: from which release on it cannot attach as it is, and why, in the same form; empty if nothing is known
    but that its tests have not run after `until`.
    `self_test` ("module:function") makes a probe prove in the serving process that it can still fire.
    `asked_by` says which setting attaches a probe: `mode` SGLANG_TRTLLM_MHA_DEBUG, `leak` GEMMA4_TRIAGE_LEAK, `cost`
    GEMMA4_TRIAGE_COST, `age` GEMMA4_TRIAGE_POOL_SEED.
    `own_paths`: under which names it counts in /server_info that it did its work; empty if it counts nothing.
    `last_rows_only`: it serves a prefill without the prompt's logprobs, and steps aside where they are asked for.
    `meant_to_change`: which of the release's right-looking answers it changes, because they are wrong; empty: none.
    `instead_of`: ids of patches whose place it takes, so that they are left out where it is chosen.
    `knob`: the pull request's own setting for it, as the field of `Settings`, which has the variable's name; empty if
    it has none. Where the variable is set, it has the last word.
    `brings`: ids of patches that it needs: they are chosen along with it unless GEMMA4_TRIAGE_PATCHES removes them.
    `synchronises`: the probe waits for the device in every step, so `contain` has it only by name.
    `needs`: what a server must have for a fault to act, in words of `faults/needs.py`; every fault says so.
    `about`: every fix, optimisation and probe has it.
    """

    id: str
    kind: Kind
    title: str
    origin: str
    upstream: str
    attachments: tuple[Attachment, ...]
    since: str = BASE
    until: str = BASE
    absorbed: str = ""
    not_ported: str = ""
    default: bool = False
    self_test: str | None = None
    asked_by: Literal["mode", "leak", "cost", "age"] = "mode"
    synchronises: bool = False
    own_paths: tuple[str, ...] = ()
    last_rows_only: bool = False
    meant_to_change: str = ""
    instead_of: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    knob: str = ""
    needs: tuple[str, ...] | None = None
    about: About | None = None

    def attachments_in(self, release: str) -> tuple[Attachment, ...]:
        """Return what it attaches to one release.

        Args:
            release: Of SGLang.
        """
        return tuple(one for one in self.attachments if not one.releases or release in one.releases)

    @property
    def finds(self) -> bool:
        """Say whether it is a probe that can find a violation; one measures what the others take, one helps them."""
        return self.kind is Kind.PROBE and self.asked_by in ("mode", "leak")

    def __post_init__(self) -> None:
        if self.kind is Kind.FAULT and self.default:
            raise ValueError(f"fault {self.id} must never be a default")
        if self.kind is Kind.FAULT and self.needs is None:
            raise ValueError(f"fault {self.id} does not say what it needs")
        if self.kind is Kind.PROBE and self.self_test is None:
            raise ValueError(f"probe {self.id} needs a self test")
        if not self.attachments:
            raise ValueError(f"patch {self.id} attaches nothing")


def check_conflicts(patches: Iterable[Patch]) -> None:
    """Refuse two exclusive claims (a replacement, an edit, a binding) on one target by different patches.

    Raises:
        PatchConflict: naming the target and every patch that claims it.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    for patch in patches:
        for attachment in patch.attachments:
            if attachment.exclusive:
                owners[attachment.target].add(patch.id)
    clashes = {target: ids for target, ids in owners.items() if len(ids) > 1}
    if clashes:
        lines = [f"{target}: {', '.join(sorted(ids))}" for target, ids in sorted(clashes.items())]
        raise PatchConflict("patches claim the same target: " + "; ".join(lines) + ". Choose one of each.")
