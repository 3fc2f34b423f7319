"""Measures what `diagnose` says of mutants of SGLang's own code, which act again and again, as a defect of it would.

`python tests/tools/measure_sglang_mutants.py cover RUN` serves the load of `repro mutations` without a mutation and
writes down which lines of the functions that memory safety rests on it executes. `... draw RUN --seed N --count M`
draws mutants of those lines with cosmic-ray's operators (extra `measure`). `... run RUN` puts each into an engine of
its own under all probes, and those of which nothing was said into one without probes, and appends what came of it to
RUN/rows.jsonl. `... show RUN` prints them. `... table RUN` counts what RUN/judged.json says of them: a person who has
read the mutated line judges whether the first cause named is right.

A mutant is put in by exchanging the code of the function in the engine's process before it starts. Line numbers stay,
so neither log nor dumps tell which it is. The tree of the prefix cache is not mutated: in 0.5.23 it is Rust.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from mutants_of_code import Mutant, described, does_something_else, places, replaced

FUNCTIONS: dict[str, str] = {
    "mem_cache/allocator/*.py": ".*",
    "mem_cache/common.py": ".*",
    "mem_cache/swa_memory_pool.py": ".*",
    "mem_cache/unified_radix_cache.py": ".*",
    "mem_cache/unified_cache/*.py": ".*",
    "mem_cache/unified_cache_components/*.py": ".*",
    "mem_cache/swa_radix_cache.py": ".*",
    "mem_cache/memory_pool.py": "ReqToTokenPool|alloc|free|translate|mapping",
    "managers/schedule_batch.py": "alloc|prepare_for|evict|release|filter_batch|merge_batch|kv_|init_next",
    "managers/scheduler_components/batch_result_processor.py": "process_batch_result|release|free|resolve|evict",
    "managers/scheduler_output_processor_mixin.py": "process_batch_result|release|free|resolve|evict",
    "layers/attention/trtllm_mha_backend.py": "metadata|page_table|translate|view|swa",
    "layers/attention/triton_backend.py": "metadata|page_table|translate|indices|swa|window",
    "speculative/frozen_kv_mtp_*.py": ".*",
    "speculative/eagle_utils.py": "prepare_for|assign|alloc",
    "speculative/eagle_info.py": "prepare_for|assign|alloc|filter_batch|merge_batch",
}
"""Where memory safety rests, as patterns of files under sglang/srt, and which functions of each (a search)."""

COVERED, DRAWN, MUTANT, ROWS, JUDGED = "covered.json", "drawn.json", "mutant.json", "rows.jsonl", "judged.json"
LINES = "lines.txt"
SCORES = ("right", "partly", "unknown", "wrong", "unseen")
"""As in docs/mutations.md. An exception of Python's own that is named with its function is `unknown`."""
CLEAN = {True: "clean-mtp", False: "clean-plain"}
LIMIT_S = 120.0


@dataclass(frozen=True)
class Drawn:
    """A mutant, its number in the draw, its line, and whether its engine has MTP."""

    number: int
    line: int
    mtp: bool
    mutant: Mutant

    @property
    def name(self) -> str:
        """Return the name of its folder, which says nothing of it."""
        return f"run-{self.number:04d}"


def sources() -> Path:
    """Return where SGLang's sources are, without importing it."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None, "SGLang is not installed"
    assert spec.origin is not None, "SGLang has no sources"
    return Path(spec.origin).parent / "srt"


def measured_files(root: Path) -> dict[Path, re.Pattern[str]]:
    """Return the measured files, each with what its functions' names must hold."""
    found: dict[Path, re.Pattern[str]] = {}
    for pattern, names in FUNCTIONS.items():
        for path in sorted(root.glob(pattern)):
            found.setdefault(path, re.compile(names))
    return found


# Drawing.


def outer_function(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    """Return the outermost function of a line, with its classes' names in `name`; None for a line outside of them."""

    def walk(node: ast.AST, outer: str) -> ast.FunctionDef | None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                if found := walk(child, f"{outer}{child.name}."):
                    return found
            elif isinstance(child, ast.FunctionDef) and child.body[0].lineno <= line <= (child.end_lineno or 0):
                child.name = outer + child.name
                return child
            elif isinstance(child, (ast.If, ast.Try)) and (found := walk(child, outer)):
                return found
        return None

    return walk(tree, "")


def draw(run: Path, seed: int, count: int, root: Path) -> list[Drawn]:
    """Return `count` mutants of lines that the load executes, of files in turn; the same ones for the same sources."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    covered = {name: json.loads((run / COVERED).read_text())[name] for name in CLEAN.values()}
    by_path: dict[Path, dict[tuple[str, int, int], list[tuple[str, int]]]] = {}
    wanted = measured_files(root)
    for path in wanted:
        relative = str(path.relative_to(root))
        lines = {line for name in CLEAN.values() for line in covered[name].get(relative, ())}
        if lines:
            by_path[path] = {place: how for place, how in places(root, [path]).items() if place[1] in lines}
    chosen: list[Drawn] = []
    chance = random.Random(seed)
    orders = {path: chance.sample(sorted(found), len(found)) for path, found in by_path.items()}
    while len(chosen) < count and any(orders.values()):
        # Every file in turn would measure small ones most: by the square root of how much of it is executed.
        paths = [path for path in orders if orders[path]]
        path = chance.choices(paths, [len(by_path[one]) ** 0.5 for one in paths])[0]
        place = orders[path].pop()
        text = path.read_text()
        function = outer_function(ast.parse(text), place[1])
        if function is None or not wanted[path].search(function.name):
            continue
        for operator, occurrence in chance.sample(by_path[path][place], len(by_path[path][place])):
            changed = mutate_code(text, get_operator(operator)(), occurrence)
            if changed is None or not does_something_else(text, changed):
                continue
            if len(changed.splitlines()) != len(text.splitlines()):
                continue
            relative = str(path.relative_to(root))
            on = [mtp for mtp, name in CLEAN.items() if place[1] in covered[name].get(relative, ())]
            mutant = described("sglang", relative, operator, text, changed)
            chosen.append(Drawn(len(chosen) + 1, place[1], chance.choice(on), mutant))
            break
    return chosen


# Inside the engine's process.


def put_in(root: Path, mutant: Mutant, line: int, package: str = "sglang.srt") -> None:
    """Exchange the code of the mutant's function, whose package has its sources at `root`."""
    path = root / mutant.path
    text = path.read_text()
    changed = replaced(text, mutant, mutant.function)
    assert changed is not None, f"{mutant} is not there"
    outer = outer_function(ast.parse(text), line)
    assert outer is not None
    module = importlib.import_module(".".join((package, *Path(mutant.path).with_suffix("").parts)))
    function = _function_of(module, outer.name)
    code = compile(changed, function.__code__.co_filename, "exec", dont_inherit=True)
    found = [one for one in _codes(code) if one.co_qualname == function.__code__.co_qualname]
    at = [one for one in found if one.co_firstlineno == function.__code__.co_firstlineno]
    assert at, f"{outer.name} has no code of its own in {mutant.path}"
    function.__code__ = at[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _function_of(module: Any, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = found.__dict__[part]
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        inner = [getattr(found, one, None) for one in ("__wrapped__", "__func__", "fget", "func")]
        found = next((one for one in inner if one is not None), None)
        assert found is not None, f"{name} is no function"
    return found


def trace(root: Path, to: Path, release: str) -> None:
    """Write each measured line to `to` when it is first executed after a request has come."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from gemma4_runtime.targets import dotted_path

    measured = {str(path): str(path.relative_to(root)) for path in measured_files(root)}
    seen: set[tuple[str, int]] = set()
    file = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def local(frame: Any, event: str, _: Any) -> Any:
        key = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and key not in seen:
            seen.add(key)
            os.write(file, f"{measured[key[0]]}:{key[1]}\n".encode())
        return local

    def begin(scheduler: Any, received: Any, *args: Any, **kwargs: Any) -> None:
        if received:
            sys.settrace(lambda frame, event, _: local if frame.f_code.co_filename in measured else None)

    HookRegistry.register(dotted_path(release, "scheduler.process_input"), begin, HookType.BEFORE)


def prefork() -> None:
    """Be the process that imports SGLang; each arm puts in its mutant, or traces, if its folder says so."""
    from gemma4_repro.engine import prefork as base
    from gemma4_repro.engine.arm_process import run_arm

    def run_one(request: Any) -> None:
        import sglang

        told = json.loads((request.folder / MUTANT).read_text())
        if told.get("trace"):
            trace(sources(), request.folder / LINES, sglang.__version__)
        elif "mutant" in told:
            put_in(sources(), Mutant(**told["mutant"]), told["line"])
        run_arm(request)

    sys.argv = [sys.argv[0], sys.argv[2]]
    base.main(run=run_one)


# Running.


class _Progress:
    """Prints what ends, and hands it on."""

    def __init__(self, on_end: Any) -> None:
        self._on_end = on_end

    def importing(self, sglang_version: str, folder: Path) -> None:
        print(f"SGLang {sglang_version}", flush=True)

    def started(self, run: Any) -> None:
        pass

    def waiting(self, phases: Any, elapsed_s: float) -> None:
        pass

    def ended(self, outcome: Any) -> None:
        self._on_end(outcome)


def engines(
    run: Path, told: dict[str, tuple[bool, dict[str, Any]]], guarded: bool, side_by_side: int, end: Any
) -> None:
    """Run an engine for each name: whether it has MTP, and what its process is told."""
    from gemma4_repro import run_engines
    from gemma4_repro.engine.arm_request import ArmRequest
    from gemma4_repro.engine.readiness import model_arguments
    from gemma4_repro.mutations.load import LOAD, PAUSE_S, Probes, engine_arguments, settings
    from gemma4_repro.scenarios.e4b_engine import E4B_TOYS

    models = model_arguments(E4B_TOYS)
    probes = Probes.TRAP if guarded else None

    def requests(place: Any) -> list[Any]:
        made = []
        for name, (mtp, what) in told.items():
            folder = place.folder / name
            (folder / MUTANT).write_text(json.dumps(what))
            request = ArmRequest(
                arm=name,
                folder=folder,
                command=["gemma4-triage", "repro", "mutations"],
                environment={**settings(probes), "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")},
                engine_arguments=engine_arguments(models, mtp),
                prompts=LOAD.prompts(),
                new_tokens=LOAD.new_tokens(),
                stage_of=LOAD.stage_of(),
                pause_s=PAUSE_S,
                recorders=["steps", "mutator"],
            )
            made.append(run_engines.EngineRun(request, LIMIT_S))
        return made

    command = [sys.executable, str(Path(__file__)), "prefork", str(os.getpid())]
    options = run_engines.Options("sglang-mutants", tuple(told), run, True, side_by_side, command)
    run_engines.run_engines(requests, options, _Progress(end))


def cover(run: Path, side_by_side: int) -> None:
    """Serve the load with and without MTP, and write down which lines were executed."""
    told = {name + "-traced": (mtp, {"trace": True}) for mtp, name in CLEAN.items()}
    engines(run, told, False, side_by_side, lambda outcome: print(outcome.arm, outcome.ending))
    covered: dict[str, dict[str, list[int]]] = {}
    for name in CLEAN.values():
        lines = covered.setdefault(name, {})
        for entry in sorted(set((run / (name + "-traced") / LINES).read_text().split())):
            path, _, line = entry.rpartition(":")
            lines.setdefault(path, []).append(int(line))
    (run / COVERED).write_text(json.dumps(covered, indent=1))


def run_all(run: Path, side_by_side: int, only: list[int]) -> None:
    """Run what has no row yet under all probes, then without probes those of which nothing was said."""
    from gemma4_dumps.store import DumpStore
    from gemma4_repro.mutations.score import Clean, effect_of, ending_text
    from gemma4_triage.diagnose.named_causes import named_causes

    every = [Drawn(**{**one, "mutant": Mutant(**one["mutant"])}) for one in json.loads((run / DRAWN).read_text())]
    rows = {row["number"]: row for row in _rows(run)}

    def keep(row: dict[str, Any]) -> None:
        with (run / ROWS).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def ended_guarded(outcome: Any) -> None:
        named = named_causes(outcome.dumps, outcome.log)
        if outcome.arm in CLEAN.values():
            print(outcome.arm, ending_text(outcome), "NOT SILENT" if named else "silent", flush=True)
            return
        drawn = by_name[outcome.arm]
        row = {
            "number": drawn.number,
            "named": [one.model_dump(mode="json") for one in named],
            "dumps": len(DumpStore(outcome.dumps).list()),
            "ending": ending_text(outcome),
            "effect": None,
        }
        keep(row)
        said = [f"{one.confidence} {one.rule} {one.structure}/{one.defect}" for one in named]
        where = f"{drawn.mutant.path} {drawn.mutant.function}:{drawn.line}"
        print(f"{drawn.number} {where}: {said[0] if said else 'nothing'}", flush=True)

    left = [one for one in every if (one.number in only if only else one.number not in rows)]
    by_name = {one.name: one for one in left}
    told = {one.name: (one.mtp, {"mutant": asdict(one.mutant), "line": one.line}) for one in left}
    if left:
        engines(run, {name: (mtp, {}) for mtp, name in CLEAN.items()} | told, True, side_by_side, ended_guarded)
    rows = {row["number"]: row for row in _rows(run)}
    silent = [
        one
        for one in every
        if (row := rows.get(one.number)) and not row["named"] and (one in left or not row["effect"])
    ]
    bare_of = {f"{one.name}-bare": one for one in silent}
    told = {name: (one.mtp, {"mutant": asdict(one.mutant), "line": one.line}) for name, one in bare_of.items()}
    clean: dict[bool, Clean] = {}
    idle: dict[bool, Any] = {}

    def ended_bare(outcome: Any) -> None:
        result = outcome.result
        if outcome.arm in CLEAN.values():
            mtp = outcome.arm == CLEAN[True]
            answers = {answer.prompt: answer.output_ids for answer in result.answers}
            clean[mtp] = Clean(mtp=mtp, answers=answers, accept_length=result.accept_length)
            idle[mtp] = result.idle
            return
        drawn = bare_of[outcome.arm]
        effect = effect_of(outcome, clean[drawn.mtp])
        of_idle = None if result is None else result.idle != idle[drawn.mtp]
        of_drafts = None if result is None else result.accept_length != clean[drawn.mtp].accept_length
        more = {"idle_changed": of_idle, "accept_changed": of_drafts}
        keep({**rows[drawn.number], "effect": effect.model_dump(mode="json") | more})
        nothing = effect.noticed == "nothing" and not effect.tokens_changed and not of_idle and not of_drafts
        print(f"{drawn.number} without probes: {'no effect' if nothing else effect} {more}", flush=True)

    if silent:
        engines(run, {name: (mtp, {}) for mtp, name in CLEAN.items()} | told, False, side_by_side, ended_bare)


def _rows(run: Path) -> list[dict[str, Any]]:
    if not (run / ROWS).exists():
        return []
    latest = {row["number"]: row for row in map(json.loads, (run / ROWS).read_text().splitlines())}
    return [latest[number] for number in sorted(latest)]


def main() -> None:
    """Read the command line."""
    if sys.argv[1] == "prefork":
        prefork()
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cover", "draw", "run", "show", "table"))
    parser.add_argument("run", type=Path)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", default=[])
    parser.add_argument("--sources", type=Path, help="where sglang/srt is, for a draw without SGLang")
    asked = parser.parse_args()
    if asked.what == "cover":
        cover(asked.run, asked.side_by_side)
    elif asked.what == "draw":
        drawn = draw(asked.run, asked.seed, asked.count, asked.sources or sources())
        (asked.run / DRAWN).write_text(json.dumps([asdict(one) for one in drawn], indent=1) + "\n")
        show(asked.run)
    elif asked.what == "show":
        show(asked.run)
    elif asked.what == "table":
        print(table(asked.run))
    else:
        run_all(asked.run, asked.side_by_side, asked.only)


def has_effect(row: dict[str, Any]) -> bool:
    """Say whether a mutant did anything that can be seen: what was found, or what differs from a clean run."""
    effect = row["effect"]
    if row["named"] or effect is None:
        return True
    differs = ("tokens_changed", "idle_changed", "accept_changed")
    return effect["noticed"] != "nothing" or any(effect[name] for name in differs)


def table(run: Path) -> str:
    """Return how often the first cause named was right, as a table in Markdown."""
    rows, judged = _rows(run), json.loads((run / JUDGED).read_text())
    acting = [row for row in rows if has_effect(row)]
    assert {str(row["number"]) for row in acting} == set(judged), "every mutant with an effect is judged, and no other"
    said: dict[str, Counter[str]] = {score: Counter() for score in SCORES}
    for row in acting:
        sure = row["named"][0]["confidence"] if row["named"] else "nothing"
        said[judged[str(row["number"])][0]][sure] += 1
    lines = [
        f"{len(rows)} mutants, of which {len(acting)} do anything that can be seen.",
        "",
        "| the first cause named is | mutants | said as certain | likely | possible |",
        "|---|---|---|---|---|",
    ]
    for score in SCORES:
        counts = [said[score][sure] or "" for sure in ("certain", "likely", "possible")]
        lines.append(f"| {score} | {sum(said[score].values())} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def show(run: Path) -> None:
    """Print each mutant as a difference, with its row if there is one."""
    rows = {row["number"]: row for row in _rows(run)}
    for one in json.loads((run / DRAWN).read_text()):
        mutant = one["mutant"]
        mtp = "MTP" if one["mtp"] else "plain"
        print(f"== {one['number']} {mutant['path']}:{one['line']} {mutant['function']} ({mtp}; {mutant['operator']})")
        old, new = mutant["before"].splitlines(), mutant["after"].splitlines()
        for before, after in zip(old, new, strict=True):
            if before != after:
                print(f"  - {before.strip()}\n  + {after.strip()}")
        if row := rows.get(one["number"]):
            print(f"  {row['dumps']} dumps, {row['ending'][:200]}")
            if effect := row["effect"]:
                print(f"  without probes: {effect}")
            for named in row["named"]:
                print(
                    f"    {named['confidence']} {named['rule']} [{named['structure']} / {named['defect']}]"
                    f" owner {named['owner']}: {named['cause'][:300]}"
                )


if __name__ == "__main__":
    main()
