"""Write what the installed release of SGLang calls its server's arguments, and at what it leaves each of them.

A log says every argument; what stands at its default is no part of the line that starts the server again. Run it in
an environment of each supported release: `python tests/tools/make_sglang_arguments.py`.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gemma4_triage.diagnose

DATA = Path(gemma4_triage.diagnose.__file__).with_name("sglang_arguments.json")


def arguments() -> dict[str, list[str]]:
    """Return form, default and, where it has another name, option of each argument of this release, by name."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    options = {option: action for action in parser._actions for option in action.option_strings}
    by_name = {action.dest: action for action in reversed(parser._actions)}
    names = getattr(ServerArgs, "__struct_fields__", None) or ServerArgs.__dataclass_fields__
    found = {}
    for name in names:
        option = f"--{name.replace('_', '-')}"
        action = options.get(option) or by_name.get(name)
        if action is not None:
            renamed = [] if option in options else [action.option_strings[0]]
            found[name] = [_form(action), str(action.default), *renamed]
    return found


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
