"""A hook takes keyword arguments that it does not know, which a later release of SGLang may pass to the function."""

import inspect
import json
import pkgutil
from pathlib import Path

import pytest

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Hook, How

RECORD = Path(__file__).parents[1] / "data" / "hooks_with_fixed_arguments.json"
FIXED = set(json.loads(RECORD.read_text()))
"""Around-hooks that would break: each has to hand such arguments on in its body. The list only shrinks."""
HOOKS = sorted({one.implementation for patch in CATALOG for one in patch.attachments if isinstance(one, Hook)})


def breaks(implementation):
    """Say whether a call with one keyword argument more, all others given, is refused by the signature."""
    parameters = inspect.signature(pkgutil.resolve_name(implementation)).parameters.values()
    return not any(one.kind is one.VAR_KEYWORD for one in parameters)


@pytest.mark.parametrize("implementation", HOOKS)
def test_an_unknown_keyword_argument_breaks_no_hook_but_those_on_the_list(implementation):
    assert breaks(implementation) == (implementation in FIXED)


def test_the_list_names_hooks_that_exist():
    assert set(HOOKS) >= FIXED


def test_what_only_looks_on_is_not_on_the_list():
    watching = {
        one.implementation
        for patch in CATALOG
        for one in patch.attachments
        if isinstance(one, Hook) and one.how in (How.BEFORE, How.AFTER)
    }
    # Returns the arguments for SGLang's function, so it has to hand unknown ones on.
    assert watching & FIXED <= {"gemma4_runtime.fixes.spec_info_guards:before_filter"}
