"""Says what became of every target of ours in another release of SGLang, from its source alone.

    make targets RELEASE=0.5.24
    python tests/tools/compare_targets.py 0.5.24 [--against RELEASE] [--json] [--cache FOLDER] [--unpacked FOLDER]

The release is compared with the newest known one before it, the reference, or with `--against`: with that one's table
of targets and its source, so that what is listed is what changed since. A wheel is fetched once by `pip download
--no-deps` into a cache folder outside the checkout; nothing of it is installed or imported. Each key is looked up in
both trees at its path in the reference's table and compared line by line, without docstrings and comments:

    same       identical
    small      85 % of the lines and more, equal arguments
    changed    50 % and more, or other arguments
    rewritten  less
    moved      not there, and a function of that name elsewhere is alike by a third or more
    gone       none of these

Likeness is of text, not of meaning: this is the list to begin reading with. What the runtime reads of SGLang beside
its targets is looked for too, and names that lead nowhere are said. Where the release has tables of its own, each of
their keys is resolved in the tree, and the command ends with 1 if one leads nowhere; for one that has no tables yet it
ends with 0, as nothing that is said of it can be wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.release.names import NAMES
from gemma4_runtime.releases import BASE, KNOWN, at_least, installed_or_base, is_release, order
from gemma4_runtime.targets import TARGETS
from sglang_source import Place, SourceTree, likeness

STATES = ("same", "small", "changed", "rewritten", "moved", "gone")
_SMALL, _CHANGED, _MOVED = 0.85, 0.5, 1 / 3


@dataclass(frozen=True)
class Row:
    """What became of one target.

    Attributes:
        key: The key of the target table.
        state: One of STATES.
        alike: The share of equal lines, 0 to 1; None where there is nothing to compare.
        path: The dotted path in the other release, empty if it is gone.
        place: `file:line` there, empty if it is gone.
        added: Arguments that the other release has more.
        removed: Arguments that it has no longer.
        patches: The ids of the patches that use it.
    """

    key: str
    state: str
    alike: float | None
    path: str
    place: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    patches: tuple[str, ...]


def compare(key: str, path: str, old: SourceTree, new: SourceTree, patches: tuple[str, ...] = ()) -> Row:
    """Look one target up in both trees.

    Raises:
        LookupError: The reference itself does not have it, so its table is wrong.
    """
    before = old.resolve(path)
    if before is None:
        raise LookupError(f"{key}: {path} is not in {old.root}")
    after = new.resolve(path)
    # Hooks are set on the class that defines a method, so one that is only inherited is no longer at its place.
    there = after is not None and (before.inherited or not after.inherited)
    if after is None:
        after = _elsewhere(before, path, new)
    if after is None:
        return Row(key, "gone", None, "", "", (), (), patches)
    alike = likeness(before, after)
    had, has = before.arguments or [], after.arguments or []
    added, removed = (tuple(one for one in a if one not in b) for a, b in ((has, had), (had, has)))
    state = _state(alike, before.text == after.text, had == has) if there else "moved"
    return Row(key, state, alike, path if there else after.path, f"{after.file}:{after.line}", added, removed, patches)


def _state(alike: float, identical: bool, equal_arguments: bool) -> str:
    if identical:
        return "same"
    if alike >= _SMALL and equal_arguments:
        return "small"
    return "changed" if alike >= _CHANGED else "rewritten"


def _elsewhere(before: Place, path: str, new: SourceTree) -> Place | None:
    """Return the likest function of that name, and among equals the one whose class or module is called the same."""
    owner, name = path.split(".")[-2:]
    found = [one for one in new.definitions(name) if not name.startswith("__") or one.path.split(".")[-2] == owner]
    rated = sorted(((likeness(before, one), one.path.split(".")[-2] == owner, one.path) for one in found), reverse=True)
    if not rated or rated[0][0] < _MOVED:
        return None
    return next(one for one in found if one.path == rated[0][2])


def compare_all(reference: str, old: SourceTree, new: SourceTree) -> list[Row]:
    """Return one row per key of the reference's table, in the table's order."""
    users = {
        key: tuple(p.id for p in CATALOG if any(a.target == key for a in p.attachments_in(reference)))
        for key in TARGETS[reference]
    }
    return [compare(key, path, old, new, users[key]) for key, path in TARGETS[reference].items()]


def reference_for(release: str) -> str:
    """Return the newest known release before this one; the base for the base and for what is older."""
    before = [one for one in KNOWN if not at_least(one, release)]
    return max(before, key=order, default=BASE)


def unresolved(table: Mapping[str, str | None], tree: SourceTree) -> list[str]:
    """Return the keys of a table whose path leads nowhere in the tree, or to what a class only inherits."""
    found = {key: tree.resolve(path) for key, path in table.items() if path and not tree.has_module(path)}
    return [key for key, place in found.items() if place is None or place.inherited]


def fetch(release: str, cache: Path) -> Path:
    """Download and unpack the wheel of a release, unless that was done before.

    Args:
        release: As PyPI names it.
        cache: Gets a folder per release.

    Returns:
        The folder that holds `sglang/`.

    Raises:
        SystemExit: pip could not get it; its own words are on stderr.
    """
    folder = cache / release
    if (folder / "sglang").is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run(
        [*command, "--dest", str(cache / "wheels" / release), f"sglang=={release}"], check=False
    ).returncode:
        raise SystemExit(f"pip could not download sglang=={release}")
    (wheel,) = (cache / "wheels" / release).glob("*.whl")
    partial = cache / f"{release}.partial"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(partial, [name for name in packed.namelist() if name.endswith(".py")])
    partial.rename(folder)
    return folder


def source_of(release: str, cache: Path) -> Path:
    """Return a folder that holds a release's `sglang/`: the installed one, found without importing it, or a wheel's."""
    spec = importlib.util.find_spec("sglang") if installed_or_base() == release else None
    if spec is None or not spec.submodule_search_locations:
        return fetch(release, cache)
    return Path(spec.submodule_search_locations[0]).parent


def line(row: Row) -> str:
    """Return one row for people."""
    alike = "" if row.alike is None else f" {int(row.alike * 100)}%"
    signature = "".join(f" {sign}{name}" for sign, names in (("+", row.added), ("-", row.removed)) for name in names)
    where = f"{row.path} ({row.place})" if row.state == "moved" else row.place
    return f"{row.key:34} {row.state + alike:14} {where or '-'}{signature}  [{', '.join(row.patches) or 'unused'}]"


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; 1 if the release's own tables have keys that lead nowhere, else 0."""
    parser = argparse.ArgumentParser(description="Compares every target with an unpacked release of SGLang.")
    parser.add_argument("release")
    parser.add_argument("--against", choices=KNOWN, help="the known release to compare with, instead of the newest")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "gemma4-triage" / "sglang", help="for the wheels"
    )
    parser.add_argument("--unpacked", type=Path, help="a folder that holds the release's sglang/; nothing is fetched")
    options = parser.parse_args(arguments)
    release = options.release
    if not is_release(release):
        parser.error(f"{release!r} is no release of SGLang; write it as PyPI does, such as 0.5.24")
    reference = options.against or reference_for(release)
    new = SourceTree(options.unpacked or source_of(release, options.cache))
    rows = compare_all(reference, SourceTree(source_of(reference, options.cache)), new)
    counts = Counter(row.state for row in rows)
    known = release in TARGETS
    read = unresolved(NAMES[release if known else reference], new)
    astray = [*unresolved(TARGETS[release], new), *read] if known else []
    if options.json:
        document = {"reference": reference, "release": release, "counts": {state: counts[state] for state in STATES}}
        rest = {"has_tables": known, "unresolved": astray, "names_gone": [] if known else read}
        print(json.dumps(document | rest | {"targets": [asdict(row) for row in rows]}, indent=2))
    else:
        print(*map(line, rows), sep="\n")
        print(
            f"SGLang {release} against the table and source of {reference}, {len(rows)} targets:",
            ", ".join(f"{state} {counts[state]}" for state in STATES),
        )
        if known:
            print(f"its own tables lead nowhere for {', '.join(astray)}" if astray else "its own tables all resolve")
        else:
            print(
                f"SGLang {release} has no tables here yet. Of what the runtime reads as on {reference}, "
                + (f"it has no longer: {', '.join(read)}" if read else "everything is at its place")
            )
    return 1 if astray else 0


if __name__ == "__main__":
    sys.exit(main())
