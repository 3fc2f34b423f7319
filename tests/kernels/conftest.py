"""What all tests of kernels share: the interpreter does once a launch what it would do at each call of a helper."""

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter


@pytest.fixture(scope="session", autouse=True)
def _one_patch_a_launch() -> Iterator[None]:
    """Keep the interpreter from replacing Triton's functions, which a launch has done, at each call of a jitted helper.

    That is half of what a kernel of many helpers takes.
    """
    its_own: Callable[[FunctionType], Any] = interpreter._patch_lang
    replaced: set[int] = set()
    launched: list[Any] = []

    def patch(function: FunctionType) -> Any:
        languages = {id(one) for one in (tl, tl.core) if any(one is value for value in function.__globals__.values())}
        if launched and languages <= replaced:
            return None
        scope = its_own(function)
        replaced.update(languages)
        if not launched:
            launched.append(scope)
            restore = scope.restore

            def end() -> None:
                launched.clear()
                replaced.clear()
                restore()

            scope.restore = end
        return scope

    interpreter._patch_lang = patch
    yield
    interpreter._patch_lang = its_own
