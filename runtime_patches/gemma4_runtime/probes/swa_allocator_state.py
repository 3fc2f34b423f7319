"""Probe `swa-allocator`, what it remembers: a ledger of pages per allocator, and how it stays true.

The allocator's own lists of free pages are the truth. SGLang never changes such a list in place, it makes a new one, so
the ledger is true as long as the lists are the very objects that the probe saw last: a host-side comparison. Where they
are not (`clear`, `restore_state`, the first call of all, HiCache, which allocates on the inner allocators directly), it
is rebuilt from the lists, O(pool), and who is served by which SWA page is learnt again from use.

| entry point    | what is checked                                                                       |
|----------------|---------------------------------------------------------------------------------------|
| backup_state   | nothing: it hands out the lists                                                       |
| restore_state  | no SWA page comes back that was freed, mapping and all, since the backup: `pool_leak` |
| clear          | nothing: the new lists start a new ledger                                             |

Not checked at `restore_state`: slots that were handed out since the backup and are still held. Whether the caller
dropped them, as speculative drafts do, only the owner knows; if it did not, their next hand-out passes here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary
from weakref import ref as weakref

import torch

from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.schema import Provenance
from gemma4_runtime import current
from gemma4_runtime.allocator_history import History, free_lists, request_slots_of
from gemma4_runtime.checks.lost_pages import check_restored
from gemma4_runtime.checks.page_ledger import Site
from gemma4_runtime.checks.slot_ledger import SlotLedger, pages_in_use
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.evidence import offences, payload
from gemma4_runtime.leak.ledger import BY, SITE, UP_TO
from gemma4_runtime.release.allocators import held_back, pair_available
from gemma4_runtime.steps import latest_step_number

RULES: Mapping[str, str] = {
    "alloc_out_of_range": "swa-alloc-range",
    "alloc_overlap": "swa-alloc-overlap",
    "free_out_of_range": "swa-free-range",
    "double_free": "swa-double-free",
    "stale_mapping": "swa-stale-mapping",
    "pool_alias": "swa-mapping-alias",
    "pool_leak": "swa-lost-pages",
    "length_differs": "swa-alloc-lengths",
}
"""The rule under which a verdict is reported."""

SPACES = ("full", "swa")


@dataclass
class Books:
    """Holds one allocator's ledger and what a dump tells of its past.

    Attributes:
        ledger: The pages in use.
        allocator: Whose they are, as a weak reference.
        lists: The free lists that the ledger agrees with; None: none.
        inside: SGLang is in the middle of a call that the probe has checked.
        doubted: A violation was found and the call went on.
        before: The lists as they were when the hand-out began that is being checked; None outside one.
        given: What the full and the sliding-window pool's own allocators returned in the hand-out that is being
            checked, before the mapping was written; without those that were not asked, or are not known.
        history: For the dumps.
        pending: Full slots, None where these stay in use, and SWA slots of a group of frees, for releases that settle
            both when they come in.
        group: SGLang's own list of the group that `pending` is of: `clear` forgets an open one.
        short: A call of that group has not put aside all that it was given.
    """

    ledger: SlotLedger
    allocator: Callable[[], Any]
    lists: tuple[torch.Tensor, ...] | None = None
    inside: bool = False
    doubted: bool = False
    before: tuple[torch.Tensor, ...] | None = None
    given: dict[str, torch.Tensor] = field(default_factory=dict)
    history: History = field(default_factory=History)
    pending: list[tuple[torch.Tensor | None, torch.Tensor]] = field(default_factory=list)
    group: Any = None
    short: bool = False

    def pending_of(self, group: Any) -> list[tuple[torch.Tensor | None, torch.Tensor]]:
        """Return what waits for the end of an allocator's group, SGLang's own list."""
        return self.pending if self.group is group else []

    @contextmanager
    def call(self):
        """Run around SGLang's own code: entry points that it calls in turn are not checked again."""
        global _calling
        self.inside, self.given, _calling = True, {}, self
        try:
            yield
        finally:
            self.inside, _calling = False, None

    def commit(self, allocator: Any, update: Callable[[], None] | None = None) -> None:
        """Note what a call did. After a violation its slots may index anything, so the lists are asked instead."""
        self.before, self.given = None, {}
        if self.doubted:
            self.lists, self.doubted = None, False
            return
        if update is not None:
            update()
        self.lists = free_lists(allocator)


_BOOKS: WeakKeyDictionary[Any, Books] = WeakKeyDictionary()
_calling: Books | None = None
"""Of the allocator whose call runs."""


def books_of(allocator: Any) -> Books:
    """Return the ledger of `allocator`, true as of now."""
    books = _BOOKS.get(allocator)
    if books is None:
        page, device = allocator.page_size, allocator.full_to_swa_index_mapping.device
        ledger = SlotLedger.create(allocator.size_full // page, allocator.size_swa // page, page, device)
        books = _BOOKS[allocator] = Books(ledger, weakref(allocator))
    lists = free_lists(allocator)
    if not books.inside and (books.lists is None or any(a is not b for a, b in zip(books.lists, lists, strict=True))):
        books.ledger.rebuild(torch.cat(lists[:2]), torch.cat(lists[2:]))
        books.lists = lists
    return books


def uppers(allocator: Any) -> tuple[int, int]:
    """Return the first slot beyond the last page, of the full and of the SWA pool."""
    page = allocator.page_size
    return (allocator.size_full // page + 1) * page, (allocator.size_swa // page + 1) * page


def after_inner_alloc(result: Any, inner: Any, *args: Any, **kwargs: Any) -> None:
    """Run after a pool's own `alloc`, `alloc_extend` or `alloc_decode`: what it gave, before the mapping has it."""
    if _calling is not None and result is not None:
        allocator = _calling.allocator()
        pools = () if allocator is None else (allocator.full_attn_allocator, allocator.swa_attn_allocator)
        _calling.given |= {space: result for space, pool in zip(SPACES, pools, strict=False) if inner is pool}


def around_restore_state(original: Callable[..., Any], allocator: Any, state: Any) -> Any:
    """Run around `restore_state(state)`, state as `backup_state` returned it."""
    books = books_of(allocator)
    books.history.begin(allocator, "restore_state")
    result = original(allocator, state)
    lists = free_lists(allocator)
    books.history.end(allocator)
    books.history.tell(lists=lists)
    live = pages_in_use(torch.cat(lists[2:]), books.ledger.swa_owner.numel())
    violation = check_restored(books.ledger.swa_owner, live)
    if violation is not None:
        report_lost(allocator, violation, "restore_state", "swa", "was freed since the backup; its mapping is gone")
    books.ledger.rebuild(torch.cat(lists[:2]), torch.cat(lists[2:]), keep_owners=True)
    books.commit(allocator)
    return result


def report_slots(
    allocator: Any,
    violation: Violation,
    full: torch.Tensor,
    swa: torch.Tensor,
    entry: str,
    summary: Callable[[], str],
) -> None:
    """Report slots of a call: `slots` [n, 2] in the dump, column 0 full, 1 SWA, with the state of their pages.

    `swa_before` [n] is what the mapping has for the full slot ahead of each: where a request continues, its last one's.
    `swa_given` [n] is what the sliding-window pool's own allocator gave, where that is known: the mapping has column 1.
    `full_at_given` [n] is what the mapping has at those: full slots where it was written with its arguments exchanged.
    """
    books = books_of(allocator)
    ledger, given = books.ledger, books.given.get("swa")

    def tensors() -> dict[str, torch.Tensor]:
        slots = torch.stack((full, swa), dim=1).to(torch.int64)
        pages = slots // allocator.page_size
        states = [
            table[pages[:, column].clamp(0, table.numel() - 1)].to(torch.int64)
            for column, table in enumerate((ledger.full_live, ledger.swa_owner))
        ]
        mapping = allocator.full_to_swa_index_mapping
        before = mapping[(full.to(torch.int64) - 1).clamp(0, mapping.shape[0] - 2)].to(torch.int64)
        found = {"slots": slots, "page_states": torch.stack(states, dim=1), "swa_before": before}
        if given is not None and given.shape == full.shape:
            found["swa_given"] = given.to(torch.int64)
            found["full_at_given"] = mapping[given.to(torch.int64).clamp(0, mapping.shape[0] - 1)].to(torch.int64)
        return found

    owners = lambda: request_slots_of(allocator, full)  # noqa: E731
    _report(allocator, violation, "slots", SPACES[violation.first.column], entry, summary, tensors, owners)


def report_last_loc(allocator: Any, violation: Violation, last_loc: torch.Tensor, entry: str) -> None:
    """Report where an allocation was asked to continue from: `last_loc` [requests, 1] in the dump."""
    bad = violation.first
    summary = (
        f"{entry} was asked to continue from slot {bad.value}, legal are {bad.lower} to {bad.upper - 1}, "
        "and -1 for a request without earlier tokens"
    )
    tensors = lambda: {"last_loc": last_loc[:, None]}  # noqa: E731
    _report(allocator, violation, "last_loc", "full", entry, lambda: summary, tensors)


def report_lengths(
    allocator: Any, violation: Violation, lens: torch.Tensor, on_host: torch.Tensor, last_loc: torch.Tensor, entry: str
) -> None:
    """Report lengths of a batch of which the host has others: `lengths` [requests, 2], column 0 the host's."""
    bad = violation.first
    summary = (
        f"{entry} was told that request {bad.row} of its batch has {bad.value} tokens by the host's copy, and "
        f"{bad.lower} by the device's"
    )
    tensors = lambda: {"lengths": torch.stack((on_host.to(lens.device), lens), dim=1).to(torch.int64)}  # noqa: E731
    owners = lambda: request_slots_of(allocator, last_loc.clamp(min=0))  # noqa: E731
    _report(allocator, violation, "lengths", "full", entry, lambda: summary, tensors, owners)


def report_lost(
    allocator: Any, violation: Violation, entry: str, space: str, how: str, instead: torch.Tensor | None = None
) -> None:
    """Report pages that nobody holds and no list has: `pages_lost` [listed, 1] in the dump.

    Args:
        allocator: A pool pair's.
        violation: The pages.
        entry: The function that lost them.
        space: Of which pool they are.
        how: How they were lost.
        instead: `pages_instead` [any, 2] in the dump: what is in their place, and how often, where that is known.
    """
    noun = "page" if violation.count == 1 else "pages"
    summary = f"{entry}: {violation.count} {space} {noun}, first {violation.first.value}: {how}"
    lost = torch.tensor([[bad.value] for bad in violation.listed])
    of_full = lambda: request_slots_of(allocator, lost[:, 0] * allocator.page_size) if space == "full" else ()  # noqa: E731
    tensors = {"pages_lost": lost} | ({} if instead is None else {"pages_instead": instead})
    _report(allocator, violation, "pages_lost", space, entry, lambda: summary, lambda: tensors, of_full)


def _asked_by() -> dict[str, Any]:
    """Return who made the call, as far as the leak ledger's hooks know."""
    site, by = SITE.get(), BY.get()
    known = {} if site is Site.UNKNOWN else {"call_site": site.name.lower()}
    known |= {} if UP_TO.get() is None else {"insert_up_to": UP_TO.get()}
    return known if by is None else known | {"by_request_slot": by[0]}


def draft_of(
    allocator: Any, rule: str, verdict: str, site: str, summary: str, tensors: Mapping[str, torch.Tensor]
) -> DumpDraft:
    """Return what a dump says of the allocator whatever was wrong: its pools, free lists and the calls that led there.

    Waits for the device.
    """
    lists, (full_upper, swa_upper), page = free_lists(allocator), uppers(allocator), allocator.page_size
    free = {"free_pages_full": torch.cat(lists[:2]), "free_pages_swa": torch.cat(lists[2:])}
    books = books_of(allocator)
    if books.before is not None:
        free |= {"free_before_full": torch.cat(books.before[:2]), "free_before_swa": torch.cat(books.before[2:])}
    past, step = books.history.evidence(allocator), latest_step_number()
    if step is None and past["events"]:
        # Before the first step has begun, the ledger knows of which one the call is.
        step = past["events"][-1].get("step")
    return DumpDraft(
        rule=rule,
        verdict=verdict,
        site=site,
        summary=summary,
        step=step,
        page_size=page,
        extents={
            "slots_full_pool": full_upper,
            "slots_swa_pool": swa_upper,
            "pages_full_pool": full_upper // page,
            "pages_swa_pool": swa_upper // page,
        },
        scalars={
            "full_available": int(allocator.full_available_size()),
            "swa_available": int(allocator.swa_available_size()),
            # What others ask before they allocate.
            **({} if (both := pair_available(allocator)) is None else {"pair_available": both}),
            "pending_frees": held_back(allocator),
            "owners": current.owners_asked(),
            # Whether a call of the group had not put aside what it was given: else the group had all of it.
            **({"group_short": bool(books.short)} if site.endswith(".free_group_end") else {}),
            **_asked_by(),
            **past["scalars"],
        },
        tensors={name: payload(tensor) for name, tensor in {**tensors, **free}.items()} | past["tensors"],
        events=past["events"],
        dropped_events=past["dropped_events"],
    )


def _report(
    allocator: Any,
    violation: Violation,
    table: str,
    space: str,
    entry: str,
    summary: Callable[[], str],
    tensors: Callable[[], dict[str, torch.Tensor]],
    owners: Callable[[], tuple[int | None, ...]] = tuple,
) -> None:
    books_of(allocator).doubted = True
    rule, site = RULES[violation.verdict], f"SWATokenToKVPoolAllocator.{entry}"

    def draft() -> DumpDraft:
        text = summary()
        return replace(
            draft_of(allocator, rule, violation.verdict, site, text, tensors()),
            pool_kind=space,
            provenance=Provenance(
                table_space=space,  # pyright: ignore[reportArgumentType]
                buffer_space=space,  # pyright: ignore[reportArgumentType]
                table_origin=f"{type(allocator).__name__}.{entry}",
                buffer_origin=f"{type(allocator.get_kvcache()).__name__}, {space} pool",
                explanation=text,
            ),
            offences=offences(violation.listed, table, owners()),
        )

    current.guard().report(violation, rule, site, draft)
