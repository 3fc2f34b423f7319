"""Hands arguments that a hook does not know to the function that it hooks.

Releases of SGLang add parameters to the functions that hooks sit on. A hook that looks at three of four arguments would
end the server with a TypeError, although the fourth is none of its business. What the target takes and the hook does
not is found once, when the hook is registered; a hook that knows every parameter is left as it is and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Any

from gemma4_runtime.patch import How

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def handing_on(how: How, implementation: Callable[..., Any], target: Callable[..., Any]) -> Callable[..., Any]:
    """Return the hook, or one around it that hands on what the hook does not take.

    Args:
        how: Where the hook stands. An around-hook's `original` is given the arguments; those of a before-hook that
            answers with other arguments are added to its answer. A replacement has nothing to hand them to.
        implementation: The hook. Its parameters, after `original` or `result`, are the target's first, under its own
            names.
        target: The function of SGLang, unbound.
    """
    before_target = 0 if how is How.BEFORE else 1
    own = list(signature(implementation).parameters.values())[before_target:]
    theirs = list(signature(target).parameters.values())
    kinds = {one.kind for one in own}
    more = [] if Parameter.VAR_POSITIONAL in kinds else _positional(theirs)[len(_positional(own)) :]
    takes_any_name = Parameter.VAR_KEYWORD in kinds
    known = {one.name for one in own}
    unknown = [one for one in theirs if one.kind is Parameter.KEYWORD_ONLY and one.name not in known]
    unknown += [one for one in theirs if one.kind is Parameter.VAR_KEYWORD]
    if how is How.REPLACE or not (more or (unknown and not takes_any_name)):
        return implementation
    count = before_target + len(_positional(own))

    @wraps(implementation)
    def hook(*args: Any, **named: Any) -> Any:
        named.update(zip(more, args[count:], strict=False))
        # A hook that takes any name hands them on itself.
        rest = {} if takes_any_name else {name: named.pop(name) for name in set(named) - known}
        given = args[:count]
        if how is How.AROUND and rest:
            given = (_with(args[0], rest), *given[1:])
        answer = implementation(*given, **named)
        if how is How.BEFORE and rest and answer is not None:
            return answer[0], {**answer[1], **rest}
        return answer

    return hook


def _positional(parameters: Iterable[Parameter]) -> list[str]:
    return [one.name for one in parameters if one.kind in _POSITIONAL]


def _with(original: Callable[..., Any], rest: Mapping[str, Any]) -> Callable[..., Any]:
    call = partial(original, **rest)
    # Hooks read the name of what they hook.
    call.__name__ = getattr(original, "__name__", "original")  # pyright: ignore[reportAttributeAccessIssue]
    return call
