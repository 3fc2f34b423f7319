"""Hold the docstrings of every file to the rules: `python tests/tools/docstring_ratchet.py` says what breaks one.

Rules are ruff's, in the convention "google" of pyproject.toml, and three that ruff does not have:

    fragment     the first line begins in mid-sentence ("Of a line with ...", "As of the last line."), or that of a
                 function does not begin with its verb ("The exit code.", "Why it is 5.", "None if it has none."). A
                 module, a class and a property may be a noun, and a test's docstring may state what is tested.
    args         an argument or a field is described outside the list `Args:` or `Attributes:`
    inline       the same behind a sentence, or in place of one ("A dump of a run. rule: None if it has no manifest.",
                 "label: of the arm."). Docstrings that did so when the rule was made are named in
                 tests/data/docstrings_before.txt, which only shrinks: `--update` takes out those that no longer do

No rule asks for a docstring of a class or a function (D101 to D107): where the name and the types say everything, a
docstring would only repeat them. Every module has one (D100, D104). The mood of the verb is free (D401 is not in the
convention): "Return the rows" and "Returns the rows" are both complete sentences.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
BEFORE = "tests/data/docstrings_before.txt"
INLINE = re.compile(r"(?:^|[.;,] )((?:\w+, )*\w+): ")
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


def described_inline(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the qualified name of what has a docstring that breaks the rule "inline", each name once."""
    seen: set[str] = set()
    for name, node in documented(ast.parse(text)):
        in_list, known = False, set(names_of(node))
        for number, row in enumerate((ast.get_docstring(node) or "").splitlines()):
            if row and not row[0].isspace():
                in_list = row.strip() in LISTED
            words = (
                word for found in INLINE.finditer(row) if found.start() or not number for word in found[1].split(", ")
            )
            if not in_list and known.intersection(words) and name not in seen:
                seen.add(name)
                yield getattr(node, "lineno", 1), name


def own_findings(text: str) -> Iterator[str]:
    """Yield what breaks the rules "fragment" and "args", as "LINE: RULE: what is wrong"."""
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
    before = names_before(root)
    inline: set[str] = set()
    for path in files:
        text = (root / path).read_text(encoding="utf-8")
        if own := list(own_findings(text)):
            found.setdefault(path, []).extend(own)
        for line, name in described_inline(text):
            inline.add(f"{path} {name}")
            if f"{path} {name}" not in before:
                say = f"{line}: inline: the docstring of {name} describes an argument or a field outside its list"
                found.setdefault(path, []).append(say)
    if gone := sorted(before - inline):
        found[BEFORE] = [f"1: inline: {one} is in line or gone: run this with --update" for one in gone]
    return found


def names_before(root: Path = ROOT) -> set[str]:
    """Return what may still break the rule "inline", each as "PATH NAME"."""
    path = root / BEFORE
    return set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()


def update(root: Path = ROOT) -> None:
    """Take out of the list what no longer breaks the rule "inline"; nothing is ever added."""
    inline = {
        f"{path} {name}"
        for path in python_files(root)
        for _, name in described_inline((root / path).read_text(encoding="utf-8"))
    }
    (root / BEFORE).write_text("".join(f"{one}\n" for one in sorted(names_before(root) & inline)), encoding="utf-8")


def main() -> int:
    """Print what breaks a rule; 1 if anything does."""
    if "--update" in sys.argv[1:]:
        update()
    said = [f"{path}:{line}" for path, lines in findings().items() for line in lines]
    print("\n".join(said) or "docstrings are in line")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
