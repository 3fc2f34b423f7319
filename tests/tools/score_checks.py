"""Scores `logs` on incidents that nobody wrote: every failure that SGLang's own source can report, one log each.

Usage: python tests/tools/score_checks.py [--show floor|silent] [--root SITE_PACKAGES/sglang/srt]. Each `raise` and each
`logger.error` with words becomes a log of a start or of a server that serves; a table says for each part of SGLang how
many are told with a part and a next step, how many are only repeated, and how many leave no finding. What a number in a
message is, nobody knows here: each is 16.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from made_logs import death, found_in, stamp, started, steady

FLOOR = ("other-crash", "unexplained-line")
_STARTS = (
    "__init__",
    "__post_init__",
    "<module>",
    "load_model",
    "load_weights",
    "create_weights",
    "from_config",
    "check_",
)
_PARTS = (
    *(
        "server_args.py",
        "arg_groups",
        "configs",
        "model_loader",
        "layers",
        "models",
        "mem_cache",
        "disaggregation",
        "lora",
    ),
    *(
        "speculative",
        "constrained",
        "multimodal",
        "distributed",
        "managers",
        "entrypoints",
        "model_executor",
        "sampling",
    ),
)


class Report(NamedTuple):
    """What a line of SGLang's source reports.

    Attributes:
        file: below srt.
        function: that holds the line.
        line: its number.
        type_name: of the exception; "" for a line of the log.
        message: the words, with 16 for each value.
    """

    file: str
    function: str
    line: int
    type_name: str
    message: str


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "16" for part in node.values)  # type: ignore
    if isinstance(node, ast.BinOp):
        return _text(node.left) + (_text(node.right) if isinstance(node.op, ast.Add) else "")
    return ""


def reports(root: Path, every: int = 1) -> Iterator[Report]:
    """Yield what the source below a folder can report, in the order of files and lines: all, or every n-th file's."""
    for path in sorted(root.rglob("*.py"))[::every]:
        file = str(path.relative_to(root))
        if not file.startswith(_PARTS):
            continue
        tree = ast.parse(path.read_text("utf-8-sig", errors="replace"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        within = {id(inner): function.name for function in functions for inner in ast.walk(function)}
        for node in ast.walk(tree):
            function = within.get(id(node), "<module>")
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                said = next(filter(None, map(_text, node.exc.args)), "")
                if said and node.exc.func.id.endswith(("Error", "Exception")):
                    yield Report(file, function, node.lineno, node.exc.func.id, said)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "error":
                yield from (Report(file, function, node.lineno, "", said) for said in map(_text, node.args[:1]) if said)


def log_of(report: Report) -> list[str]:
    """Return the log in which it would stand."""
    first, _, rest = report.message.strip().partition("\n")
    begins = report.file.startswith(_PARTS[:4]) or report.function.startswith(_STARTS)
    before = [started(model_path="google/gemma-4-E4B-it"), *([] if begins else steady(3))]
    if not report.type_name:
        return [*before, f"{stamp(9, 'TP0')} {first}\n"]
    end = death(9, f"{report.type_name}: {first}\n{rest}".rstrip(), "TP0", f"srt/{report.file}")
    return [*before, end.replace("line 12, in step", f"line {report.line}, in {report.function}")]


def judged(report: Report) -> str:
    """Return "told", "floor" (repeated, of unknown cause) or "silent"."""
    found = found_in(log_of(report))
    return "silent" if not found else "floor" if found[0].rule in FLOOR else "told"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--show", choices=("floor", "silent"))
    parser.add_argument("--root", type=Path)
    arguments = parser.parse_args()
    found = importlib.util.find_spec("sglang")
    root = arguments.root or (Path(found.submodule_search_locations[0]) / "srt" if found else None)  # type: ignore
    if root is None:
        parser.error("SGLang is not installed here; name the folder with --root")
    table: dict[str, Counter[str]] = {}
    for report in reports(root):
        verdict = judged(report)
        table.setdefault(report.file.partition("/")[0], Counter())[verdict] += 1
        if verdict == arguments.show:
            print(f"{report.file}:{report.line} {report.function}: {report.type_name} {report.message[:120]!r}")
    for part, counts in table.items():
        print(f"{part:<18} {counts['told']:5} told {counts['floor']:5} floor {counts['silent']:5} silent")
    print(
        f"{'all':<18} "
        + " ".join(f"{sum(c[name] for c in table.values()):5} {name}" for name in ("told", "floor", "silent"))
    )


if __name__ == "__main__":
    main()
