"""Probe `geometry`, at start-up: whether pools, layers, windows and backends fit together, on every rank.

| hook                                      | when                                            | looks at              |
|-------------------------------------------|-------------------------------------------------|-----------------------|
| before the draft's `init_cuda_graphs`      | draft bound and its backend chosen, no captures | the frozen draft      |
| after Scheduler.init_model_worker         | all workers exist                               | target; other drafts  |

The rules are in `checks/geometry.py`. What follows depends on the severity:

| finding | log                 | contain             | trap, 1                                                |
|---------|---------------------|---------------------|--------------------------------------------------------|
| fatal   | dump                | dump                | dump, a line on stderr, and the process ends with 1    |
| advice  | dump                | one log line        | one log line                                           |
| note    | one log line        | one log line        | one log line                                           |

All findings go to this probe's row of the guard manifest (`findings`; an empty list: checked, nothing found). Advice
is no dump outside `log`, because the release ships with one (`window_width`) and every start would leave a dump.
Log lines are written by the first rank only.

Whether a layer's keys and values are stored where it reads them no attribute says: for each layer of the target one
token is stored in page 0, read by every layer, and what page 0 held is put back.

A frozen draft's own 64-token pool is not checked, because nobody reads it: both of SGLang's pool swaps are entered,
and what every node of the backend reads inside them is checked instead. A node that a swap leaves behind shows that
dummy pool there, and is reported. The third swap, `FrozenKVMTPCudaGraphRunner.capture_one_batch_size`, is the same
assignment inside a capture and cannot be entered here.

What layers are bound to is looked at again while the server serves, by `geometry_later.py`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.errors import ExitCode
from gemma4_dumps.schema import Layer as LayerRecord
from gemma4_dumps.schema import Provenance
from gemma4_runtime import binding_facts, current
from gemma4_runtime import geometry_facts as facts
from gemma4_runtime.checks import geometry
from gemma4_runtime.checks.bindings import check_apart, check_stored
from gemma4_runtime.checks.geometry import Finding, Severity
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.errors import SettingsError, TrappedViolation, VerificationFailed
from gemma4_runtime.guard import Guard
from gemma4_runtime.release.arguments import settled
from gemma4_runtime.release.ranks import tensor_parallel_rank
from gemma4_runtime.settings import Mode

logger = logging.getLogger(__name__)

RULE = "geometry"
_DRAFT_SITE = "FrozenKVMTPWorker.init_cuda_graphs"
_TARGET_SITE = "Scheduler.init_model_worker"
# What SGLang's speculative workers call the runner of their draft.
_RUNNER_NAMES = ("draft_model_runner", "draft_runner")
_BACKEND_NAMES = ("draft_attn_backend", "draft_extend_attn_backend")


def refuse_unknown_pools(server_args: Any, **_unknown: Any) -> None:
    """Run before `check_server_args`.

    Raises:
        SettingsError: Both pools are parts of one memory (--enable-unified-memory), where a slot's number is not its
            place and there is no map from one pool to the other.
    """
    if getattr(settled(server_args), "enable_unified_memory", False):
        raise SettingsError(
            "--enable-unified-memory makes one memory of both pools, whose slots the probes cannot follow: serve "
            "without it, or with --debug 0 (SGLANG_TRTLLM_MHA_DEBUG=0 and GEMMA4_TRIAGE_LEAK=0)"
        )


def before_draft_graphs(worker: Any, **_unknown: Any) -> None:
    """Run before the frozen draft captures its graphs: a pool left behind would end the capture in IndexError."""
    target, draft = worker.target_worker.model_runner, worker.draft_model_runner
    found = list(geometry.check_shared(facts.shared_facts(target), facts.shared_facts(draft), True))
    layers, read = facts.layer_facts(draft.model), facts.layer_facts(target.model)
    found += geometry.check_bindings(layers, facts.kv_owners(target, read))
    found += geometry.check_windows("draft", layers, read)
    found += geometry.check_scales("draft", layers)
    if worker.kv_context is not None:
        meant = facts.pool_facts(worker.kv_context.target_token_to_kv_pool)
        slots = facts.slots_to_hand_out(target.token_to_kv_pool_allocator)
        found += geometry.check_nodes(facts.frozen_nodes(worker), meant, layers, slots)
    _deliver(found, _DRAFT_SITE, draft)


def after_model_workers(result: Any, scheduler: Any, **_unknown: Any) -> None:
    """Run after all workers exist: the target, room for requests, and a draft that keeps KV of its own."""
    target = scheduler.tp_worker.model_runner
    layers = facts.layer_facts(target.model)
    found = list(geometry.check_layers("target", layers, facts.pool_facts(target.token_to_kv_pool)))
    found += geometry.check_windows("target", layers)
    found += geometry.check_sources("target", layers)
    found += geometry.check_scales("target", layers)
    models = models_of(scheduler)
    found += check_apart(binding_facts.bound_now(models))
    found += check_stored("target", binding_facts.stored_now(models[0]))
    found += geometry.check_kv_scales("target", layers, str(target.kv_cache_dtype))
    sizes = facts.sizes_said(target.token_to_kv_pool_allocator)
    found += geometry.check_handed_out(facts.pool_facts(target.token_to_kv_pool), sizes, int(target.page_size))
    room = facts.swa_room(target, settled(scheduler.server_args).chunked_prefill_size, int(scheduler.max_req_input_len))
    if room is not None:
        found += geometry.check_swa_room(room)
    found += _own_pool_draft(scheduler.draft_worker, target)
    _deliver(found, _TARGET_SITE, target)


def _own_pool_draft(worker: Any, target: Any) -> Iterable[Finding]:
    """Findings about a draft of the EAGLE style; none for no draft, one without a model, and the frozen one."""
    worker = getattr(worker, "draft_worker", None) or worker
    draft = draft_runner(worker)
    if draft is None or hasattr(worker, "kv_context"):
        return
    layers = facts.layer_facts(draft.model)
    yield from geometry.check_shared(facts.shared_facts(target), facts.shared_facts(draft), False)
    yield from geometry.check_windows("draft", layers)
    backends = {"attn_backend": getattr(draft, "attn_backend", None)}
    backends |= {name: getattr(worker, name, None) for name in _BACKEND_NAMES}
    nodes = [
        # Such a backend translates with the allocator's map, which serves the draft's pool as well as the target's.
        replace(node, swa_state=None)
        for name, held in backends.items()
        if held is not None
        for node in facts.backend_nodes(held, name)
    ]
    slots = facts.slots_to_hand_out(target.token_to_kv_pool_allocator)
    yield from geometry.check_nodes(nodes, facts.pool_facts(draft.token_to_kv_pool), layers, slots)


def models_of(scheduler: Any) -> tuple[binding_facts.Model, ...]:
    """Return the target of a scheduler whose workers exist, and its draft if that is a model."""
    target, worker = scheduler.tp_worker.model_runner, scheduler.draft_worker
    models = [binding_facts.model_of("target", target, lambda: target.token_to_kv_pool)]
    worker = getattr(worker, "draft_worker", None) or worker
    draft = draft_runner(worker)
    if draft is not None:
        # A frozen draft reads the target's, as its worker's context has it at each look.
        frozen = getattr(worker, "kv_context", None) is not None
        pool = lambda: worker.kv_context.target_token_to_kv_pool if frozen else draft.token_to_kv_pool  # noqa: E731
        models.append(binding_facts.model_of("draft", draft, pool))
    return tuple(models)


def draft_runner(worker: Any) -> Any:
    """Return the runner of a speculative worker's draft; None for no worker, and one whose draft is no model."""
    return next((getattr(worker, name) for name in _RUNNER_NAMES if hasattr(worker, name)), None)


def self_test() -> None:
    """Fire on a planted difference, stay silent without one.

    Raises:
        VerificationFailed: the check no longer tells them apart.
    """
    target = geometry.Shared("a", "t", 16, 512, "float32", 31)
    clean = list(geometry.check_shared(target, target, True))
    planted = [found.what for found in geometry.check_shared(target, replace(target, page_size=1), True)]
    if clean or planted != ["page_size"]:
        raise VerificationFailed(f"{RULE}: self test: equal sides gave {clean}, planted page size gave {planted}")


def _deliver(found: Iterable[Finding], site: str, runner: Any) -> None:
    """Advice first: a fatal finding may end the process."""
    found = sorted(found, key=lambda finding: finding.severity is Severity.FATAL)
    current.note_findings(RULE, [_entry(finding) for finding in found])
    guard = current.guard()
    try:
        for finding in found:
            _report(guard, finding, found, site, runner)
    except TrappedViolation as error:
        # SGLang answers an exception in a starting scheduler with a signal to its parent, which ends in that signal's
        # status. A scheduler that exits is reported with its status, and the launcher ends with 1.
        print(f"gemma4-triage: {type(error).__name__}: {error}. This server does not start.", file=sys.stderr)
        sys.stderr.flush()
        raise SystemExit(ExitCode.VIOLATION) from error


def _report(guard: Guard, finding: Finding, found: list[Finding], site: str, runner: Any) -> None:
    dumps = finding.severity is Severity.FATAL or (finding.severity is Severity.ADVICE and guard.mode is Mode.LOG)
    if not dumps:
        if tensor_parallel_rank(runner) == 0:
            logger.warning("gemma4-triage: %s: %s: %s: %s", RULE, finding.severity, finding.verdict, finding.summary)
        return
    draft = finding_draft(finding, [other for other in found if other is not finding], site, runner)
    # No index is at fault, so none is listed.
    guard.report(Violation(finding.verdict, (), 0), RULE, draft.site, lambda: draft)


def _entry(finding: Finding) -> dict[str, str]:
    return {"severity": finding.severity.value, "verdict": finding.verdict, "summary": finding.summary}


def finding_draft(
    finding: Finding, others: list[Finding], site: str, runner: Any, step: int | None = None
) -> DumpDraft:
    """Return the dump of a finding.

    Args:
        finding: What differs.
        others: What else was found at that moment.
        site: The function of SGLang's at which it was seen.
        runner: Whose pools its sizes are.
        step: At which it was seen; None at the start.
    """
    scalars: dict[str, Any] = {
        "severity": finding.severity.value,
        "what": finding.what,
        "found": finding.found,
        "expected": finding.expected,
    }
    if step is not None:
        scalars["since_start"] = True
    if finding.layers:
        scalars["layers"] = ",".join(map(str, finding.layers))
    if others:
        scalars["other_findings"] = "; ".join(other.summary for other in others)
    extents = {"context_length": int(runner.model_config.context_len)}
    for part, pool in facts.pool_facts(runner.token_to_kv_pool).parts.items():
        extents[f"slots_{part}"] = pool.slots
    for part, slots in facts.slots_to_hand_out(runner.token_to_kv_pool_allocator).items():
        extents[f"handed_out_{part}"] = slots
    return DumpDraft(
        rule=RULE,
        # One site per subject: findings of one kind at one start are different ones, not repetitions.
        site=f"{site} ({finding.what})",
        summary=finding.summary,
        verdict=finding.verdict,
        layer=LayerRecord(id=finding.layers[0] if len(finding.layers) == 1 else None),
        provenance=Provenance(explanation=finding.why),
        role=finding.role,
        step=step,
        backend=type(getattr(runner, "attn_backend", None)).__name__,
        page_size=int(runner.page_size),
        extents=extents,
        scalars=scalars,
    )
