"""What the runtime reads of SGLang: `from gemma4_runtime.release import SWAKVPool` finds it where this release has it.

The only place, beside bodies that replace SGLang's, that names modules of SGLang to import from. A name is looked up
when it is imported and not before, so that no more of SGLang is loaded than before; `names.py` has the table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gemma4_runtime.errors import UnsupportedRelease
from gemma4_runtime.release.names import NAMES
from gemma4_runtime.releases import BASE, installed_or_base, read_as

_PLACES = {name: path.rpartition(".") if path else None for name, path in NAMES[read_as()].items()}


def __getattr__(name: str) -> Any:
    """Return what SGLang has under a name of the table.

    Raises:
        AttributeError: The name is not in the table.
        UnsupportedRelease: The installed release has nothing in its place.
        ImportError: SGLang is not installed, or not as its metadata says.
    """
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACES[name]
    if place is None:
        raise UnsupportedRelease(
            f"SGLang {installed_or_base()} has nothing in the place of {NAMES[BASE][name] or name}"
        )
    module, _, attribute = place
    owner = import_module(module)
    try:
        return getattr(owner, attribute)
    except AttributeError:
        # A module of a package that imports none of its own.
        return import_module(f"{module}.{attribute}")
