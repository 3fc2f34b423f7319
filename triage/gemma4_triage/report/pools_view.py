"""A plan of the KV pools on a terminal: the arithmetic, then the load at three ratios, then what to set."""

from __future__ import annotations

from rich.console import Console

from gemma4_dumps.wording import number_of
from gemma4_runtime.pools.arithmetic import SGLANG_DEFAULT
from gemma4_runtime.pools.demand import Fit
from gemma4_triage.pools.as_written import gib_text
from gemma4_triage.pools.at_start import AtStart
from gemma4_triage.pools.memory import Memory
from gemma4_triage.pools.plan import Plan
from gemma4_triage.terminal import add_row, plain_table, print_line

_BINDING = {"full": "full", "swa": "SWA", "both": "both"}


def server_flag(plan: Plan) -> str:
    """Return the option of SGLang's command line."""
    ratio = plan.sizes.ratio if plan.recommended is None else plan.recommended.sizes.ratio
    return f"--swa-full-tokens-ratio {ratio:g}"


def print_plan(console: Console, plan: Plan, memory: Memory, owner_only: bool, start: AtStart) -> None:
    """Print the plan; everything is of one GPU."""
    shape, cell, sizes = plan.shape, plan.cell, plan.sizes
    full, swa = shape.layers("full_attention", owner_only), shape.layers("sliding_attention", owner_only)
    print_line(console, shape.name, style="bold")
    print_line(console, f"  {full} full and {swa} sliding layers with KV, window {shape.window}")
    if owner_only:
        share = number_of(shape.shared_layers, "layer shares its KV and counts", "layers share their KV and count")
        print_line(console, f"  {share} for nothing, with owner-only-kv; SGLang 0.5.13.post1 alone counts them")
    elif shape.shared_layers:
        print_line(
            console, f"  {shape.shared_layers} of them share their KV, and SGLang has pools for them all the same"
        )
    print_line(console, f"  one token takes {cell.full} bytes in the full pool, {cell.swa} in the SWA pool")
    print_line(console, f"  for pools: {memory.how}")
    if memory.how != gib_text(memory.pools_bytes):
        print_line(console, f"             = {gib_text(memory.pools_bytes)}")
    per_token = f"({cell.full} + {sizes.ratio:g} x {cell.swa}) bytes"
    print_line(
        console, f"  at ratio {sizes.ratio:g}: {memory.pools_bytes} / {per_token}, pages of {plan.serving.page_size}"
    )
    print_line(console, f"             = {sizes.full_tokens} full and {sizes.swa_tokens} SWA tokens")
    if start.owners is not None and not owner_only:
        owners = start.owners
        times = owners.full_tokens / sizes.full_tokens if sizes.full_tokens else 0.0
        counts = f"{owners.full_tokens} full and {owners.swa_tokens} SWA tokens, {times:.2f} times as many"
        print_line(console, f"  with owner-only-kv: {counts}")
    for remark in plan.serving.remarks:
        print_line(console, f"  {remark}")
    if start.policy is not None:
        print_line(console, f"  swa-ratio-policy at this start: {start.policy.why}")
    if start.owners_policy is not None and not owner_only:
        print_line(console, f"  and with owner-only-kv, a default: {start.owners_policy.why}")
    if plan.need is not None:
        _print_load(console, plan)


def _print_load(console: Console, plan: Plan) -> None:
    need, recommended, default = plan.need, plan.recommended, plan.default
    if need is None or recommended is None or default is None:
        return
    loads = " and ".join(map(str, plan.workloads))
    swa = f"{need.swa + need.swa_fixed} SWA tokens ({need.swa_fixed} of them for a chunk in prefill)"
    print_line(console, f"{loads} needs {need.full} full and {swa}")
    table = plain_table(
        "", "ratio", "full tokens", "SWA tokens", "full holds", "SWA holds", "requests at once", "binds"
    )
    rows = [("recommended", recommended), ("SGLang's default", default)]
    if plan.asked is not None and plan.asked.sizes.ratio != SGLANG_DEFAULT:
        rows.append(("asked", plan.asked))
    for name, one in rows:
        add_row(table, name, *_cells(one, need.requests))
    console.print(table)
    if plan.split is not None:
        held = f"{min(plan.split.requests, need.requests)} of {need.requests} at ratio {plan.split.sizes.ratio:g}"
        print_line(console, f"with SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT=1: {held}")
    print_line(console, f"set {server_flag(plan)}", style="bold")
    judged = plan.asked or recommended
    most = min(judged.requests, need.requests)
    wanted = number_of(need.requests, "request")
    verdict = f"{most} of {wanted} fit{'s' * (most == 1)} at once at ratio {judged.sizes.ratio:g}"
    rest = "" if plan.enough else "; the others wait, or are retracted"
    print_line(console, verdict + rest, style="bold green" if plan.enough else "bold red")


def _cells(one: Fit, wanted: int) -> tuple[str, ...]:
    sizes = one.sizes
    return (
        *(f"{sizes.ratio:g}", str(sizes.full_tokens), str(sizes.swa_tokens)),
        *(str(one.full_requests), str(one.swa_requests)),
        f"{min(one.requests, wanted)} of {wanted}",
        _BINDING[one.binding],
    )
