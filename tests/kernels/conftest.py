"""What all tests of kernels share: Triton's interpreter prepares its language once a launch."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _prepared_once_a_launch() -> Iterator[None]:
    """Have Triton's interpreter replace the functions of its language once a launch, which takes much of a test's time.

    By itself it does so again at each call of a jitted helper within the launch.
    """
    if find_spec("triton") is None:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

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
