"""Makes docs/kernels.md and docs/kernels.svg of the committed rows of `gemma4-triage bench kernels`; measures nothing.

.venv/bin/python docs/make_kernel_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemma4_repro.bench.targets import MET, MISSED, NOT_MEASURED
from gemma4_repro.kernel_bench.plan import ARMS, MODELS, OPS, TOKENS, KernelPlan
from gemma4_repro.kernel_bench.targets import TARGETS, judge
from gemma4_triage.cli.option_names import todays_line
from gemma4_triage.report.kernel_bench_plot import draw_kernels
from gemma4_triage.report.kernel_rows import KernelRows, Key, gather

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "kernels" / "bench" / "rows"
PAGE, PICTURE, SOURCES = (
    ROOT / "docs" / "kernels.md",
    ROOT / "docs" / "kernels.svg",
    ROOT / "docs" / "kernel_sources.json",
)
COMMAND = "python docs/make_kernel_page.py"
_COUNTED = ("ours", "sglang", "vllm", "compile", "eager")
_LIMITS = ("copy", "empty")
_ROTATION = "qk_norm_rope"


def documents() -> dict[str, dict[str, Any]]:
    """Return every run whose rows are committed, by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROWS.glob("kernels_*.json"))}


def planned() -> list[Key]:
    """Return every cell that the targets are about, measured or not."""
    plan = KernelPlan(OPS, tuple(model.id for model in MODELS), TOKENS, ("ours",), 5, 60.0)
    return [(op, model.id, tokens) for op, model, tokens in plan.cells()]


def markdown(runs: Mapping[str, Mapping[str, Any]], sources: Mapping[str, Any]) -> str:
    """docs/kernels.md, all of it."""
    found, cells = gather(list(runs.values())), planned()
    held = _lines(_targets(found, cells))
    return f"""# The fused kernels, measured

`{COMMAND}` made this page and its picture of the rows in
[kernels/bench/rows](../kernels/bench/rows); no number here is typed. {len(found.cells)} of {len(cells)} cells
(op, model, tokens) are measured; one that was measured again is the later run's.

{_lines(_runs(runs))}

Microseconds per call, medians of rounds; quantiles stand in the rows. A call is one layer's, under CUDA-graph replay of
all layers in a row, each with weights of its own and activations in turn, all arms interleaved. *of copy*: the share of
an equal-byte copy's bandwidth that our kernel reaches. *of empty*: its time over an empty kernel's. The limits are the
columns `copy` and `empty`. While tokens are few our kernels start before the kernel ahead of them has ended
(`early_launch.py`); `copy` and `empty` do not, so a share may pass 100%. In a graph of one op the kernel ahead lets the
next one start early, which not every kernel of a model does: `bench step` says what is left in one. `flashinfer` and
`sgl-kernel` compute a part of the op, and are no rivals.

![Time per call against tokens](kernels.svg)

## Arms

{_lines(f"- `{arm}`: {ARMS[arm]}" for arm in found.arms)}

## Targets

{held}

{_copies(found)}

{_lines(_against_other_copies(found))}

## Launches per decode step

Kernels in a profiler's trace of one decode step's calls of the op.

{_lines(_launches(found))}

## Other releases' kernels

{_lines(_sources(sources, runs))}

{_sections(found)}
{_lost(runs, found)}"""


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines)


def _runs(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield from _head(("rows", "date", "commit", "GPU", "versions", "cells", "minutes", "complete"))
    for name, run in runs.items():
        versions = ", ".join(f"{package} {number}" for package, number in run["versions"].items())
        cells, project = run.get("cells") or {}, run.get("project") or {}
        planned_cells = f"{cells['measured']} of {cells['planned']}" if cells else "not recorded"
        minutes = f"{run['took_s'] / 60:.1f}" if run.get("took_s") else "not recorded"
        link, commit = f"[{name}](../kernels/bench/rows/{name})", project.get("commit") or "not recorded"
        whole = run["partial"] or ("yes" if not run["lost"] else f"but for {len(run['lost'])} lost arms, below")
        yield _row((link, run["date"][:10], commit, run["device"], versions, planned_cells, minutes, whole))
    yield ""
    yield from (f"- `{todays_line(run['command'])}`" for run in runs.values())


def _against_other_copies(found: KernelRows) -> Iterator[str]:
    """qk_norm_rope, whose own copies are no measure, against the best copy of another op of no more bytes."""
    yield "`qk_norm_rope` is not held against `copy-bandwidth`: its copies are slower than those of other ops with"
    yield "about as many bytes. Beside the best of these, of at most 1.05 times its bytes, it reaches (a layer that"
    yield "slides; layers with full attention have heads of 512 and are not measured):"
    yield ""
    yield from _head(("model", "tokens", "share of the best copy's bandwidth"))
    copies = [
        (rows["copy"]["moved_bytes"], rows["copy"]["moved_bytes"] / rows["copy"]["us"]["median"])
        for (op, _, _), rows in found.cells.items()
        if op != _ROTATION and "copy" in rows
    ]
    for (op, model, tokens), rows in found.cells.items():
        if op != _ROTATION or tokens < 4096 or "ours" not in rows:
            continue
        moved = rows["ours"]["moved_bytes"]
        best = max(speed for size, speed in copies if size <= 1.05 * moved)
        yield _row((model, str(tokens), f"{100 * moved / rows['ours']['us']['median'] / best:.0f}%"))


def _targets(found: KernelRows, cells: Sequence[Key]) -> Iterator[str]:
    yield from _head(("target", "limit", "status", "met in", "measured", "worst", "where"))
    for target in TARGETS:
        entry = judge(target, cells, found.cells)
        if entry is None:
            continue
        worst, bound = entry["worst"], "at most" if target.at_most else "at least"
        where = f"{worst['op']}, {worst['model']}, {worst['tokens']} tokens" if worst else ""
        met = entry["measured"] - entry["missed_in"]
        limit, value = f"{bound} {target.limit:g}", f"{worst['value']:.2f}" if worst else ""
        measured = f"{entry['measured']} of {entry['cells']} cells"
        yield _row((f"`{target.id}`: {target.title}", limit, entry["status"], str(met), measured, value, where))


def _copies(found: KernelRows) -> str:
    """Say how far the launch-bound target can be met by what moves as many bytes and computes nothing."""
    (target,) = [target for target in TARGETS if target.id == "launch-bound"]
    ratios = [
        rows["copy"]["us"]["median"] / rows["empty"]["us"]["median"]
        for (op, _, tokens), rows in found.cells.items()
        if target.concerns(op, tokens) and {"copy", "empty"} <= set(rows)
    ]
    over = sum(ratio > target.limit for ratio in ratios)
    return (
        f"The equal-byte copy, which computes nothing, takes more than {target.limit:g} empty kernels in {over} of "
        f"these {len(ratios)} launch-bound cells."
    )


def _launches(found: KernelRows) -> Iterator[str]:
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for entry in (entry for document in found.documents for entry in document["launches"]):
        counts.setdefault((entry["op"], entry["model"]), {})[entry["arm"]] = entry["launches_per_step"]
    arms = [arm for arm in _COUNTED if any(arm in one for one in counts.values())]
    yield from _head(("op", "model", *arms))
    for op, model in found.panels:
        yield _row((op, model, *(str(counts.get((op, model), {}).get(arm, "")) for arm in arms)))


def _sources(sources: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    measured = {run["vllm_router"]["sha256"] for run in runs.values() if run.get("vllm_router")}
    first, *others = sources["releases"]
    base = f"{first['package']} {first['version']}"
    for other in others:
        name = f"{other['package']} {other['version']}"
        if other["package"] != first["package"]:
            files = {at["file"]: at["file_sha256"] for at in other["functions"].values()}
            functions = " and ".join(f"`{one}`" for one in other["functions"])
            said = (
                "this very file is what the arm `vllm` ran" if set(files.values()) <= measured else "not measured yet"
            )
            yield f"- {name} has its own: {functions} in {', '.join(f'`{file}`' for file in files)}; {said}."
            continue
        pairs = {one: (at, other["functions"].get(one)) for one, at in first["functions"].items()}
        same = [one for one, (old, new) in pairs.items() if new is not None and new["sha256"] == old["sha256"]]
        yield f"- {name} ships {len(same)} of {base}'s {len(pairs)} functions with the same source lines (SHA-256):"
        yield f"  {', '.join(f'`{one}`' for one in same)}."
        for one in (one for one in pairs if one not in same):
            yield f"- `{one}` is another in {name}, or is not there."
    yield ""
    yield f"`{sources['command']}` compared them ([checksums](kernel_sources.json)), and imports nothing of theirs."
    yield "vLLM's compiled top-k softmax is not measured: its extension is too large to be carried along. sgl_kernel's"
    yield "`topk_softmax`, which stands in the column `sgl-kernel`, is adapted from it, as its source says."


def _sections(found: KernelRows) -> str:
    return "\n".join(_section(op, found) for op in OPS if any(op == cell[0] for cell in found.cells))


def _section(op: str, found: KernelRows) -> str:
    cells = {cell: arms for cell, arms in found.cells.items() if cell[0] == op}
    arms = [arm for arm in found.arms if arm not in _LIMITS and any(arm in one for one in cells.values())]
    lines = [f"## {op}", "", *_head(("model", "tokens", *arms, *_LIMITS, "of copy", "of empty", "targets"))]
    for (_, model, tokens), rows in cells.items():
        times = [f"{rows[arm]['us']['median']:.2f}" if arm in rows else "" for arm in (*arms, *_LIMITS)]
        ours = rows.get("ours", {})
        share, ratio = ours.get("copy_share"), ours.get("empty_ratio")
        of_copy, of_empty = "" if share is None else f"{100 * share:.0f}%", "" if ratio is None else f"{ratio:.2f}"
        lines.append(_row((model, str(tokens), *times, of_copy, of_empty, _judged(op, tokens, rows))))
    return "\n".join([*lines, ""])


def _judged(op: str, tokens: int, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """`met`, or what is missed or not measured of the targets that concern the cell."""
    found: dict[str, list[str]] = {MET: [], MISSED: [], NOT_MEASURED: []}
    for target in (target for target in TARGETS if target.concerns(op, tokens)):
        value = target.value(rows)
        found[NOT_MEASURED if value is None else MET if target.met(value) else MISSED].append(target.id)
    said = [f"{status}: {', '.join(found[status])}" for status in (MISSED, NOT_MEASURED) if found[status]]
    return "; ".join(said) or MET


def _measured_since(lost: Mapping[str, Any], found: KernelRows) -> bool:
    return lost["arm"] in found.cells.get((lost["op"], lost["model"], lost["tokens"]), {})


def _lost(runs: Mapping[str, Mapping[str, Any]], found: KernelRows) -> str:
    lost = [entry for run in runs.values() for entry in run["lost"] if not _measured_since(entry, found)]
    wrong = [entry for run in runs.values() for entry in run["wrong"]]
    if not lost and not wrong:
        return "## What is missing\n\nNo arm was lost, and no answer was wrong.\n"
    lines = ["## What is missing", "", *_head(("op", "model", "tokens", "arm", "why"))]
    lines += [_row((one["op"], one["model"], str(one["tokens"]), one["arm"], _plain(one["why"]))) for one in lost]
    lines += [_row((one["op"], one["model"], str(one["tokens"]), "ours", _plain(one["what"]))) for one in wrong]
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Return the text as a table's cell holds it."""
    return " ".join(text.replace("|", "/").replace("<", "(").replace(">", ")").split())


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), "|" + "---|" * len(names)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    runs = documents()
    PAGE.write_text(markdown(runs, json.loads(SOURCES.read_text(encoding="utf-8"))), encoding="utf-8")
    PICTURE.write_text(draw_kernels(list(runs.values())), encoding="utf-8")
    print(f"Wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
