"""Changes one entry of the live engine, once, and writes down the truth. Runs inside the engine's processes; harness.

Its hooks are registered before the plugin's, so they lie inside them: a probe sees what a defect of SGLang would leave.
All hooks are registered whatever is drawn, also for the clean run, so that neither a log nor a manifest tells what was
corrupted, and none stays on the stack while SGLang runs, so that no traceback does.

| phase         | hook                                                        | structures                            |
|---------------|-------------------------------------------------------------|---------------------------------------|
| start         | after the MTP worker has bound the target's layers          | draft binding                         |
|               | after all workers and pools are there                       | pool sizes, scales                    |
| prefill       | before `run_batch` of a prefill; after its batch is made;   | what the request rows, the map, lists |
| and decode    | after its page tables are built; after slots are handed out | and batch hold; what a forward has    |
| draft         | before `draft`; after its page tables are built; after its  | the same                              |
|               | positions are set                                           |                                       |
| verify        | after `draft`; after the verify's batch, tables and slots   | the same                              |
| and verify    | around the eviction of a request's window before its step   | what that gives back                  |
| between steps | after results are processed; before slots are given back    | the same, and the tree and requests   |
| idle          | before the scheduler's own check                            | map, lists and tree                   |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemma4_dumps.structures import Defect, Structure
from gemma4_repro.mutations import forward_state, standing_state
from gemma4_repro.mutations.draw import Mutation
from gemma4_repro.mutations.entry import Change, Entry, corrupt
from gemma4_repro.mutations.grid import Phase
from gemma4_repro.mutations.live_state import LiveState
from gemma4_repro.mutations.truth import Moment, Truth
from gemma4_repro.recorders.recorder import Recorder
from gemma4_runtime.targets import TARGETS, dotted_path

AGEING_SEED = 24
_AT_STEPS = frozenset(
    {
        Structure.REQUEST_ROW,
        Structure.SWA_MAPPING,
        Structure.FULL_FREE_LIST,
        Structure.SWA_FREE_LIST,
        Structure.BATCH_LENGTHS,
        Structure.TREE_NODE,
        Structure.TREE_LOCK,
        Structure.REQUEST_COUNTERS,
    }
)
_ROWS_READ = frozenset({"trtllm.init_metadata", "swa.free", "paged.alloc_extend", "paged.alloc_decode"})
_READERS: dict[Structure, frozenset[str]] = {
    Structure.REQUEST_ROW: _ROWS_READ,
    Structure.SWA_MAPPING: _ROWS_READ,
    Structure.FULL_FREE_LIST: _ROWS_READ | {"scheduler.on_idle"},
    Structure.SWA_FREE_LIST: _ROWS_READ | {"scheduler.on_idle"},
    # Where a request has ended its length is taken out of the batch before a forward is made of that.
    Structure.BATCH_LENGTHS: frozenset({"forward_batch.init_new", "paged.alloc_decode"}),
}
"""Calls after which an entry may have been read. Of any other structure the very next reader follows at once."""


class Mutator(Recorder):
    """One mutation in one engine, or none. folder: of the run."""

    def __init__(self, folder: Path, mutation: Mutation | None) -> None:
        self._folder, self._mutation = folder, mutation
        self._chance = random.Random(mutation.entry_seed if mutation else 0)
        self._truth = Truth()
        self._scheduler: Any = None
        self._batch: Any = None
        self._step, self._now = 0, Phase.START
        self._aged = False
        self._change: Change | None = None
        self._changed_batch: Any = None
        self._lengths: dict[int, int] = {}
        self._written: list[int] = []
        self._again: Any = None
        self._withheld: standing_state.WithheldFrees | None = None

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. The scheduler inherits it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        hooks: Sequence[tuple[str, Any, Callable[..., Any]]] = (
            ("scheduler.process_input", HookType.BEFORE, self._before_input),
            ("scheduler.run_batch", HookType.BEFORE, self._before_batch),
            ("scheduler.process_result", HookType.BEFORE, self._before_results),
            ("scheduler.process_result", HookType.AFTER, self._after_results),
            ("scheduler.on_idle", HookType.BEFORE, self._before_idle),
            ("mtp.bind_context", HookType.AFTER, self._after_binding),
            ("scheduler.init_model_worker", HookType.AFTER, self._after_workers),
            ("mtp.draft", HookType.BEFORE, self._before_draft),
            ("mtp.draft", HookType.AFTER, self._after_draft),
            ("mtp.set_positions", HookType.AFTER, self._after_positions),
            ("eagle.prepare_for_decode", HookType.BEFORE, self._before_verify_slots),
            ("forward_batch.init_new", HookType.AFTER, self._after_forward_batch),
            ("trtllm.init_metadata", HookType.AFTER, self._after_metadata),
            ("swa.free", HookType.BEFORE, self._before_free),
            ("swa.free_segment", HookType.BEFORE, self._before_free),
            ("batch.evict_swa", HookType.BEFORE, self._before_eviction),
            ("batch.evict_swa", HookType.AFTER, self._after_eviction),
            ("paged.alloc_extend", HookType.AFTER, self._after_alloc_extend),
            ("paged.alloc_decode", HookType.AFTER, self._after_alloc_decode),
        )
        for target, kind, hook in hooks:
            if TARGETS[release].get(target) is None:
                continue
            HookRegistry.register(dotted_path(release, target), hook, kind)

    def _before_input(self, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        if not self._aged:
            # Ids of both pools in an order of their own: while they are equal, a wrong translation looks right.
            self._aged = True
            standing_state.age(scheduler.token_to_kv_pool_allocator, AGEING_SEED)

    def _before_batch(self, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        self._scheduler, self._batch = scheduler, batch
        self._step += 1
        extend = batch.forward_mode.is_extend()
        self._now = Phase.PREFILL if extend else Phase.DECODE
        if extend or batch.spec_algorithm.is_none():
            self._standing("scheduler.run_batch")

    def _before_verify_slots(self, *args: Any, **kwargs: Any) -> None:
        # A later release takes the slots that a verification writes before it runs the batch.
        self._now = Phase.VERIFY

    def _before_draft(self, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        if not batch.forward_mode.is_idle():
            self._now, self._batch = Phase.DRAFT, batch
            self._standing("mtp.draft")

    def _after_draft(self, result: Any, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        if not batch.forward_mode.is_idle():
            self._now = Phase.VERIFY
            self._standing("mtp.draft")

    def _before_results(self, *args: Any, **kwargs: Any) -> None:
        self._now = Phase.BETWEEN

    def _after_results(self, *args: Any, **kwargs: Any) -> None:
        self._give_back_again()
        self._standing("scheduler.process_result")
        if self._wants(Structure.FREE_CALL, Phase.BETWEEN, Defect.EARLY):
            self._try("scheduler.process_result", self._choose_early)
            # Not within the attempt: what a probe raises here is its finding, and has to pass.
            self._give_back_again()

    def _before_idle(self, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        if self._step and scheduler.is_fully_idle():
            self._now, self._batch = Phase.IDLE, None
            self._give_back_again()
            self._standing("scheduler.on_idle")

    def _after_binding(self, result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
        if self._wants(Structure.DRAFT_BINDING, Phase.START):
            self._try("mtp.bind_context", lambda: self._corrupt(standing_state.binding_entries(worker)))

    def _after_workers(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        target = scheduler.tp_worker.model_runner
        if self._wants(Structure.POOL_SIZE, Phase.START):
            sizes = lambda: standing_state.size_entries(target.token_to_kv_pool_allocator)  # noqa: E731
            self._try("scheduler.init_model_worker", lambda: self._corrupt(sizes()))
        if self._wants(Structure.KV_SCALE, Phase.START):
            self._try("scheduler.init_model_worker", lambda: self._corrupt(standing_state.scale_entries(target.model)))

    def _after_forward_batch(self, result: Any, *args: Any, **kwargs: Any) -> None:
        if self._follows_lengths(result):
            self._follow("forward_batch.init_new")
        if self._scheduler is None or self._batch is None or self._now is Phase.DRAFT:
            return
        if (now := self._of_target(result)) is None:
            return
        live = LiveState(self._scheduler, self._batch)
        if self._wants(Structure.ROW_INDICES, now):
            self._try(
                "forward_batch.init_new", lambda: self._corrupt(forward_state.row_index_entries(live, result)), live
            )
        if self._wants(Structure.WRITE_LOCATIONS, now):
            entries = lambda: forward_state.write_entries(live, result, self._written)  # noqa: E731
            self._try("forward_batch.init_new", lambda: self._corrupt(entries()), live)
        if self._wants(Structure.POSITIONS, now):
            made = lambda: forward_state.position_entries(live, result)  # noqa: E731
            self._try("forward_batch.init_new", lambda: self._corrupt(made()), live)
        if result.out_cache_loc is not None:
            self._written = result.out_cache_loc.tolist()

    def _after_positions(self, result: Any, worker: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        if self._scheduler is not None and self._wants(Structure.POSITIONS, Phase.DRAFT):
            live = LiveState(self._scheduler, self._batch)
            made = lambda: forward_state.position_entries(live, forward_batch)  # noqa: E731
            self._try("mtp.set_positions", lambda: self._corrupt(made()), live)

    def _of_target(self, forward_batch: Any) -> Phase | None:
        """Return the phase of a forward of the target; None for one that has no requests."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return None
        if mode.is_target_verify():
            return Phase.VERIFY
        return Phase.PREFILL if mode.is_extend() else Phase.DECODE

    def _after_metadata(self, result: Any, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        self._follow("trtllm.init_metadata")
        if self._scheduler is None or self._batch is None or (now := self._of_target(forward_batch)) is None:
            return
        worker = self._scheduler.model_worker
        draft = getattr(getattr(worker, "draft_worker", worker), "draft_attn_backend", None)
        now = Phase.DRAFT if backend is draft else now
        live = LiveState(self._scheduler, self._batch)
        for structure, swa in ((Structure.FULL_TABLE, False), (Structure.SWA_TABLE, True)):
            if self._wants(structure, now):
                made = lambda swa=swa: forward_state.table_entries(live, backend, forward_batch, swa)  # noqa: E731
                self._try("trtllm.init_metadata", lambda made=made: self._corrupt(made()), live)
        if self._wants(Structure.KERNEL_LENGTHS, now):
            made = lambda: forward_state.length_entries(live, backend, forward_batch, self._lengths)  # noqa: E731
            self._try("trtllm.init_metadata", lambda: self._corrupt(made()), live)
        told = backend.forward_metadata.cache_seqlens_int32.tolist()
        self._lengths = dict(zip(forward_batch.req_pool_indices.tolist(), told, strict=False))

    def _before_free(self, allocator: Any, free_index: Any, *args: Any, **kwargs: Any) -> Any:
        self._follow("swa.free")
        if self._scheduler is not None and self._wants(Structure.FREE_GROUP, Phase.BETWEEN):
            # What the group's calls before this one have given back.
            if entries := standing_state.group_entries(LiveState(self._scheduler, self._batch)):
                self._try("swa.free", lambda: self._corrupt(entries))
            return None
        # A later release settles what each call of a group names as it comes in, and says so nowhere.
        if self._scheduler is None or not len(free_index) or not getattr(allocator, "is_not_in_free_group", True):
            return None
        if not self._wants(Structure.FREE_CALL, Phase.BETWEEN) or self._wants(
            Structure.FREE_CALL, Phase.BETWEEN, Defect.EARLY
        ):
            return None
        live, given = LiveState(self._scheduler, self._batch), standing_state.Slots(free_index)
        self._try("swa.free", lambda: self._free_wrongly(live, given), live)
        return ((allocator, given.now, *args), kwargs)

    def _free_wrongly(self, live: LiveState, given: standing_state.Slots) -> Change | None:
        assert self._mutation is not None
        entries = standing_state.slot_entries(live, given, swa=False)
        if self._mutation.defect is not Defect.DUPLICATE:
            return corrupt(self._mutation.defect, entries, self._chance)
        entry = self._chance.choice(entries)
        self._again = live.slots_of(entry.value)
        return Change(entry, entry.value)

    def _give_back_again(self) -> None:
        """Give back what was put aside: a second time, or too early."""
        if self._again is not None:
            slots, self._again = self._again, None
            self._scheduler.token_to_kv_pool_allocator.free(slots)

    def _choose_early(self) -> Change | None:
        """Choose a page of a running request, to be given back at once."""
        live = LiveState(self._scheduler, self._batch)
        entries = standing_state.used_page_entries(live)
        if not entries:
            return None
        entry = self._chance.choice(entries)
        self._again = live.slots_of(entry.value)
        return Change(entry, entry.value)

    def _before_eviction(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        now = Phase.DECODE if batch.spec_algorithm.is_none() else Phase.VERIFY
        decodes = self._scheduler is not None and batch.forward_mode.is_decode()
        if decodes and self._wants(Structure.WINDOW_EVICTION, now):
            self._withheld = standing_state.WithheldFrees(batch.token_to_kv_pool_allocator)

    def _after_eviction(self, result: Any, batch: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        withheld, self._withheld = self._withheld, None
        for free in () if withheld is None else withheld.end():
            live = LiveState(self._scheduler, batch)
            self._try("batch.evict_swa", lambda live=live, free=free: self._evict_wrongly(live, free, request), live)
            # Not within the attempt: what a probe raises here is its finding, and has to pass.
            free.make()

    def _evict_wrongly(self, live: LiveState, free: standing_state.Free, request: Any) -> Change | None:
        assert self._mutation is not None
        entries = standing_state.eviction_entries(live, free.given, request)
        match self._mutation.defect:
            case Defect.DUPLICATE:
                entry = self._chance.choice(entries)
                free.given.now = standing_state.with_page(live, free.given, entry.value)
            case Defect.EARLY:
                early = standing_state.in_the_window(live, free.given, request)
                if early is None:
                    return None
                entry = early
                free.given.now = standing_state.with_page(live, free.given, entry.value)
            case defect:
                change = corrupt(defect, entries, self._chance)
                # Whose page goes in its place is concerned as much.
                victim = None if change is None or change.after is None else standing_state.user_of(live, change.after)
                return change if change is None or victim is None else replace(change, partner=victim)
        return Change(entry, entry.value)

    def _after_alloc_extend(self, result: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        phase = Phase.VERIFY if self._now is Phase.VERIFY else Phase.PREFILL
        return self._after_alloc("paged.alloc_extend", phase, result, pool)

    def _after_alloc_decode(self, result: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        return self._after_alloc("paged.alloc_decode", Phase.DECODE, result, pool)

    def _after_alloc(self, site: str, phase: Phase, result: Any, pool: Any) -> Any:
        self._follow(site)
        if result is None or not len(result) or self._scheduler is None or not self._wants(Structure.ALLOCATION, phase):
            return None
        live, given = LiveState(self._scheduler, self._batch), standing_state.Slots(result)
        swa = pool is live.allocator.swa_attn_allocator
        self._try(site, lambda: self._corrupt(standing_state.slot_entries(live, given, swa)), live)
        return given.now if self._change is not None else None

    def _standing(self, site: str) -> None:
        """Take an opportunity for what stands between forwards."""
        self._follow(site)
        mutation = self._mutation
        if mutation is None or mutation.structure not in _AT_STEPS or not self._wants(mutation.structure, self._now):
            return
        live = LiveState(self._scheduler, self._batch)
        self._try(site, lambda: self._corrupt(standing_state.entries(mutation.structure, live)), live)

    def _wants(self, structure: Structure, phase: Phase, defect: Defect | None = None) -> bool:
        mutation = self._mutation
        return (
            mutation is not None
            and self._truth.acted is None
            and self._truth.problem is None
            and (mutation.structure, mutation.phase) == (structure, phase)
            and defect in (None, mutation.defect)
        )

    def _corrupt(self, entries: Sequence[Entry]) -> Change | None:
        assert self._mutation is not None
        return corrupt(self._mutation.defect, entries, self._chance)

    def _try(self, site: str, change: Callable[[], Change | None], live: LiveState | None = None) -> None:
        """Take this opportunity, or let it pass; whatever it comes to is in the truth, and nothing is raised."""
        assert self._mutation is not None
        seen = self._truth.opportunities + 1
        self._truth = self._truth.model_copy(update={"opportunities": seen})
        if seen <= self._mutation.skipped:
            self._truth.write(self._folder)
            return
        # Broad on purpose: an exception of the harness would be taken for one of SGLang's.
        try:
            self._change = change()
        except Exception as error:  # noqa: BLE001
            self._truth = self._truth.model_copy(update={"problem": f"{type(error).__name__}: {error}"})
        if self._change is not None:
            self._changed_batch = self._batch
            entry = self._change.entry
            self._truth = self._truth.model_copy(
                update={
                    "acted": Moment(site=site, step=self._step),
                    "where": entry.where,
                    "before": entry.value,
                    "after": self._change.after,
                    "prompt": entry.prompt,
                    "row": entry.row,
                    "partner_row": None if self._change.partner is None else self._change.partner.row,
                    "overwritten": Moment(site=site, step=self._step) if self._change.is_none_to_sglang else None,
                }
            )
        self._truth.write(self._folder)

    def _follows_lengths(self, forward_batch: Any) -> bool:
        """Return whether a forward may have the lengths of the batch that was changed; True for what is no length."""
        mutation, change = self._mutation, self._change
        if mutation is None or change is None or mutation.structure is not Structure.BATCH_LENGTHS:
            return True
        lengths = dict(zip(forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist(), strict=False))
        length = None if change.entry.row is None else lengths.get(change.entry.row)
        if length is None:
            return False
        # A request's next chunk is a batch of its own, and with overlapped drafts one that takes another in has the
        # lengths that its forwards settled: then those of the batch that was changed are dropped.
        dropped = (
            self._batch is not self._changed_batch
            and change.after is not None
            and abs(length - change.entry.value) < abs(length - change.after)
        )
        if dropped and not (self._truth.read or self._truth.overwritten):
            overwritten = Moment(site="forward_batch.init_new", step=self._step)
            self._truth = self._truth.model_copy(update={"overwritten": overwritten})
            self._truth.write(self._folder)
        return not dropped

    def _follow(self, site: str) -> None:
        """Watch the changed entry until it is read, or has another value again."""
        mutation, change = self._mutation, self._change
        if mutation is None or change is None or self._truth.read or self._truth.overwritten:
            return
        readers = _READERS.get(mutation.structure)
        moment = Moment(site=site, step=self._step)
        if readers is None or site in readers:
            self._truth = self._truth.model_copy(update={"read": moment})
        elif change.entry.read() != change.after:
            self._truth = self._truth.model_copy(update={"overwritten": moment})
        else:
            return
        self._truth.write(self._folder)
