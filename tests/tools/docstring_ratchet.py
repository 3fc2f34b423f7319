"""Hold docstrings to the project's rules, file by file; files that broke them at the freeze stand on a list.

    python tests/tools/docstring_ratchet.py             say which files break a rule, or have to leave the list
    python tests/tools/docstring_ratchet.py --update    take files off the list that are in line, gone or moved
    python tests/tools/docstring_ratchet.py --freeze    write the list anew from the tree as it is

A file stays on the list as long as nothing changes that its docstrings are about: names, arguments, fields, and the
docstrings themselves. Imports and bodies of functions may change, and the file may move. `--update` never adds a file.
`--freeze` does, and is refused where a list exists, unless `--again` is given too.

Rules are ruff's, in the convention "google" of pyproject.toml, and two that ruff does not have:

    fragment     the first line begins in mid-sentence ("Of a line with ...", "As of the last line."), or that of a
                 function does not begin with its verb ("The exit code.", "Why it is 5.", "None if it has none."). A
                 module, a class and a property may be a noun, and a test's docstring may state what is tested.
    args         an argument or a field is described outside the list `Args:` or `Attributes:`

No rule asks for a docstring of a class or a function (D101 to D107): where the name and the types say everything, a
docstring would only repeat them. Every module has one (D100, D104). The mood of the verb is free (D401 is not in the
convention): "Return the rows" and "Returns the rows" are both complete sentences.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests/data/docstrings_before.json"
RUFF_RULES = "D100,D104,D2,D3,D4"
# A summary that begins with one of these has had no verb in this project.
PREPOSITION = re.compile(r"(Of|As|With|By|Under|Behind|Between|In the order) ")
CLAUSE = re.compile(r"(Which|Whose|Why|Whether|What|How|Where) ")
# Articles, pronouns, numbers, prepositions and conjunctions: no verb begins with them.
NO_VERB = re.compile(
    r"(The|An?|None|One|Two|Three|Every|Each|All|Both|No|Any|Some|Only|This|That|These|Those|Its?|They|There|Nothing"
    r"|Everything|Not|Without|At|In|On|From|To|For|Like|Up|If|When|After|Before|Around|Until|Once|While|Instead|Beside"
    r"|Within|Other|Our|SGLang's|True|False|Per|Also)(?=[\s,:;.`-])"
)
LISTED = ("Args:", "Arguments:", "Attributes:", "Keyword Args:")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.Module) -> Iterator[tuple[str, Documented]]:
    """Yield everything in a module that can have a docstring with its qualified name; the module's own is ""."""

    def below(prefix: str, parent: ast.AST) -> Iterator[tuple[str, Documented]]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, node
                yield from below(f"{prefix}{node.name}.", node)
            else:
                yield from below(prefix, node)

    yield "", tree
    yield from below("", tree)


def names_of(node: Documented) -> list[str]:
    """Return the arguments of a function, or the annotated fields of a class."""
    if isinstance(node, ast.ClassDef):
        return [
            field.target.id
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        ]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = node.args
        return [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return []


def begins_with_a_verb(node: Documented) -> bool:
    """Return whether the docstring of this has to: that of a function which is neither a property nor a test."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
        return False
    return not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def fingerprint(text: str) -> str:
    """Digest what docstrings are about: the digest outlives changes of imports and of the bodies of functions."""
    about = [
        (
            name,
            ast.get_docstring(node),
            names_of(node) if isinstance(node, ast.ClassDef) else ast.unparse(getattr(node, "args", [])),
        )
        for name, node in documented(ast.parse(text))
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def own_findings(text: str) -> Iterator[str]:
    """Yield what breaks the two rules that ruff does not have, as "LINE: RULE: what is wrong"."""
    for name, node in documented(ast.parse(text)):
        words = ast.get_docstring(node)
        if words is None:
            continue
        line, about = getattr(node, "lineno", 1), name or "the module"
        first, *rest = words.splitlines()
        verbless = begins_with_a_verb(node) and (CLAUSE.match(first) or NO_VERB.match(first))
        if verbless or PREPOSITION.match(first):
            yield f"{line}: fragment: the docstring of {about} begins in mid-sentence: {first!r}"
        known, in_list = set(names_of(node)), False
        for row in rest:
            if row and not row[0].isspace():
                in_list = row.strip() in LISTED
            described = re.match(r"\s*\*{0,2}(\w+)(?: \([^)]*\))?: ", row)
            if described and described[1] in known and not in_list:
                yield f"{line}: args: the docstring of {about} describes {described[1]!r} outside a list `Args:`"


def python_files(root: Path = ROOT) -> list[str]:
    """Return every Python file that git knows or would take, relative to the root."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.py"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in set(listed.split("\0")) if path and (root / path).is_file())


def findings(root: Path = ROOT) -> dict[str, list[str]]:
    """Return what breaks a rule, by file."""
    found: dict[str, list[str]] = {}
    command = [str(Path(sys.executable).with_name("ruff")), "check", "--select", RUFF_RULES, "--output-format", "json"]
    files = python_files(root)
    done = subprocess.run([*command, "--", *files], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise RuntimeError(f"ruff failed: {done.stderr}")
    for one in json.loads(done.stdout):
        path = str(Path(one["filename"]).relative_to(root))
        found.setdefault(path, []).append(f"{one['location']['row']}: {one['code']}: {one['message']}")
    for path in files:
        if own := list(own_findings((root / path).read_text(encoding="utf-8"))):
            found.setdefault(path, []).extend(own)
    return found


def read_list() -> dict[str, str]:
    """Return the fingerprint of each listed file at the freeze, by path."""
    return json.loads(LIST.read_text(encoding="utf-8"))


def write_list(listed: dict[str, str]) -> None:
    """Write the list, a file to a line, so that a change shows which files leave."""
    LIST.write_text(json.dumps(dict(sorted(listed.items())), indent=0) + "\n", encoding="utf-8")


def fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """Return the fingerprint of each of these files that exists, by path."""
    texts = {path: ROOT / path for path in paths}
    return {path: fingerprint(file.read_text(encoding="utf-8")) for path, file in texts.items() if file.is_file()}


def problems(listed: dict[str, str], found: dict[str, list[str]], now: dict[str, str]) -> list[str]:
    """Say what has to be done before the tree is in line with the rules and the list.

    Args:
        listed: the list, fingerprints at the freeze by path.
        found: what breaks a rule, by path.
        now: the fingerprint of each file as it is, by path.
    """
    said = [f"{path}:{line}" for path, lines in found.items() if path not in listed for line in lines]
    for path, then in listed.items():
        if path not in now:
            said.append(f"{path}: is on the list and gone: --update")
        elif path not in found:
            said.append(f"{path}: is on the list and breaks no rule any more: --update")
        elif now[path] != then:
            said.append(f"{path}: has changed: bring its docstrings in line, then --update:")
            said += [f"  {path}:{line}" for line in found[path]]
    return said


def updated(listed: dict[str, str], found: dict[str, list[str]], now: dict[str, str]) -> dict[str, str]:
    """Return the list without files that are in line or gone; one that has moved unchanged is listed where it is now.

    Args:
        listed: the list, fingerprints at the freeze by path.
        found: what breaks a rule, by path.
        now: the fingerprint of each file as it is, by path.
    """
    gone = sorted(then for path, then in listed.items() if path not in now)
    kept = {path: then for path, then in listed.items() if path in now and path in found}
    for path in found:
        if path not in listed and now[path] in gone:
            gone.remove(now[path])
            kept[path] = now[path]
    return kept


def main() -> int:
    """Check, update or freeze, as the command line says; 1 if something has to be done by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    found = findings()
    if asked.freeze:
        if LIST.exists() and not asked.again:
            parser.error(f"{LIST.name} exists, and only shrinks from here: --update. To start anew: --freeze --again")
        write_list(fingerprints(found))
    listed = read_list()
    now = fingerprints({*listed, *found})
    if asked.update:
        listed = updated(listed, found, now)
        write_list(listed)
    said = problems(listed, found, now)
    print("\n".join(said) if said else f"docstrings are in line; {len(listed)} files are still on the list")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
