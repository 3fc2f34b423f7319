"""Write what the installed release of SGLang calls its server's arguments, and at what it leaves each of them.

A log says every argument; what stands at its default is no part of the line that starts the server again. Nor is
what SGLang makes of an argument that nobody gave, where that is the same on every machine: its own resolution is run
for a toy, with a draft and without, on this machine and as on the GPUs in MACHINES. Run it from the root in an
environment of each supported release: `python tests/tools/make_sglang_arguments.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gemma4_triage.diagnose

DATA = Path(gemma4_triage.diagnose.__file__).with_name("sglang_arguments.json")
_TOYS = Path(__file__).parents[2] / "repro" / "toys"
_MODEL = _TOYS / "toy-e4b"
# A card each of 80, 180 and 24 GB, by what SGLang asks of one; the first is the machine that this runs on.
MACHINES: tuple[Mapping[str, Any], ...] = (
    {},
    {"get_device_memory_capacity": 81_559, "is_flashinfer_available": True, "is_hopper_with_cuda_12_3": True},
    {"get_device_memory_capacity": 183_000, "is_flashinfer_available": True, "is_sm100_supported": True},
    {"get_device_memory_capacity": 24_000},
)
_PLAIN = ("--model-path", str(_MODEL), "--device", "cuda")
# Counts of a draft are given, since SGLang takes all of them or none.
_WITH_DRAFT = (
    *(*_PLAIN, "--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", str(_TOYS / "toy-e4b-assistant")),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)


def arguments() -> dict[str, list[Any]]:
    """Return form, defaults and, where it has another name, option of each argument of this release, by name.

    Defaults are the parser's and what SGLang makes of it.
    """
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    options = {option: action for action in parser._actions for option in action.option_strings}
    by_name = {action.dest: action for action in reversed(parser._actions)}
    names = tuple(getattr(ServerArgs, "__struct_fields__", None) or ServerArgs.__dataclass_fields__)
    plain = _made_on_every_machine(parser, names, _PLAIN)
    with_draft = _made_on_every_machine(parser, names, _WITH_DRAFT)
    # What a draft makes of other arguments is not what they are without one.
    drafts = {name: value for name, value in with_draft.items() if name.startswith("speculative_")}
    found = {}
    for name in names:
        option = f"--{name.replace('_', '-')}"
        action = options.get(option) or by_name.get(name)
        if action is not None:
            renamed = [] if option in options else [action.option_strings[0]]
            form, made = _form(action), (made[name] for made in (plain, drafts) if name in made)
            # A switch that SGLang turns on by itself is turned on for this model.
            defaults = dict.fromkeys((str(action.default), *(() if form == "switch" else made)))
            found[name] = [form, list(defaults), *renamed]
    return found


def _made_on_every_machine(
    parser: argparse.ArgumentParser, names: tuple[str, ...], words: tuple[str, ...]
) -> dict[str, str]:
    """Return what SGLang makes of each argument that is not among `words`, where that is one plain value everywhere."""
    given = {action.dest for action in parser._actions if set(action.option_strings) & set(words)}
    each = [_resolved(parser, names, words, answers) for answers in MACHINES]
    return {
        name: value
        for name, value in each[0].items()
        if name not in given
        and not value.startswith(("[", "{"))
        and str(_TOYS) not in value
        and all(other[name] == value for other in each)
    }


def _resolved(
    parser: argparse.ArgumentParser, names: tuple[str, ...], words: tuple[str, ...], answers: Mapping[str, Any]
) -> dict[str, str]:
    """Return every argument as SGLang has it after its own resolution, on a machine that answers so."""
    from sglang.srt.server_args import ServerArgs

    with _answering(answers):
        resolved = ServerArgs.from_cli_args(parser.parse_args(words))
        if not hasattr(resolved, "resolve_once"):
            return {name: str(getattr(resolved, name)) for name in names}
        resolved.resolve_once()
        return {name: str(value) for name, value in resolved.resolved_dict().items()}


@contextmanager
def _answering(answers: Mapping[str, Any]) -> Iterator[None]:
    """Let SGLang's questions about the machine be answered so, wherever a module has them; undo it all at the end."""
    environment = dict(os.environ)
    modules = [vars(module) for name, module in sorted(sys.modules.items()) if name.startswith("sglang.") and module]
    kept = [(names, name, names[name]) for names in modules for name in answers if callable(names.get(name))]
    try:
        for module, name, _ in kept:
            module[name] = _always(answers[name])
        yield
    finally:
        for module, name, function in kept:
            module[name] = function
        os.environ.clear()
        os.environ.update(environment)


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _form(action: Any) -> str:
    """Return "switch", "both" (--x and --no-x), "many" (a word each), "adapters", "value"; "none" for one given up."""
    kind = type(action).__name__
    if kind == "BooleanOptionalAction":
        return "both"
    if kind == "LoRAPathAction":
        return "adapters"
    if kind in ("_StoreTrueAction", "DeprecatedStoreTrueAction"):
        return "switch"
    if kind not in ("_StoreAction", "DeprecatedAliasStoreAction"):
        return "none"
    return "many" if action.nargs in ("+", "*") else "value"


def main() -> None:
    """Replace the entry of the installed release in DATA."""
    known = json.loads(DATA.read_text()) if DATA.exists() else {}
    known[version("sglang")] = arguments()
    rows = []
    for release in sorted(known):
        inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(said)}" for name, said in known[release].items())
        rows.append(f" {json.dumps(release)}: {{\n{inner}\n }}")
    DATA.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
