"""What an exception of Python's says of the code that raised it, and of the values that it met."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rules.refused_by_check import CALL

OF_CODE = frozenset({"AttributeError", "TypeError", "ImportError", "ModuleNotFoundError", "NameError", "KeyError"})
_NAMES = pattern(r"name '(\w+)' is not defined|cannot access local variable '(\w+)'|local variable '(\w+)' referenced")
_IMPORTS = pattern(r"(?!launch_server|__main__|<|serve|cli|run\w*|main|server|app)[\w.]+\.py:\d+ <module>$")
_ATTRIBUTE = pattern(r"'(\w+)' object has no attribute '(\w+)'")
_OF_A_MODEL = pattern(r"For(?:CausalLM|ConditionalGeneration|SequenceClassification|Embedding)\w*$|Model$")
_ABSTRACT = pattern(r"abstract class (\w+)")
_OTHER_TYPE = pattern(
    r"Boolean value of Tensor|can only concatenate|"
    r"(?:expected|should be|must be) [\w, .]+,? (?:object, )?not (?!None)\w+"
)


_OF_SGLANG = pattern(
    r"'(?:ServerArgs|PortArgs|Engine|HttpServerEngineAdapter|TokenizerManager|\w+Req(?:Input|Output))' object has no "
    r"attribute|\b(?:ServerArgs|PortArgs|Engine|TokenizerManager|\w+Req(?:Input|Output))\.\w+\(\) "
    r"(?:got an unexpected|missing \d+ required|takes (?:from \d+ to )?\d+)"
)
_OTHER_ONE = "that code was written for another one, or its own call is wrong"


_LAUNCHED = pattern(r"invalid configuration argument|Triton Error \[\w+\]: .{0,40}invalid argument")


def of_a_caller(death: Death) -> bool:
    """Say whether it was raised outside of SGLang, by code that builds on it, of what SGLang offers such code."""
    of_sglang = death.package == "sglang" or (death.path and not death.package)
    return bool(death.frames) and not of_sglang and _OF_SGLANG.search(death.message) is not None


def of_somebody(death: Death) -> bool:
    """Say whether what SGLang offers others has not what was asked of it, and no frame says whose call it was."""
    return not death.frames and _OF_SGLANG.search(death.message) is not None


def of_the_code(death: Death) -> str:
    """Return what the exception says of the code alone, whatever the load was; "" if it may be the load's."""
    if _LAUNCHED.search(death.message):
        return "a kernel was started over no rows at all, or over more than this GPU takes in one call"
    if (found := _NAMES.search(death.message)) and death.type_name in (
        "NameError",
        "UnboundLocalError",
        "RuntimeError",
    ):
        name = next(filter(None, found.groups()))
        return f"its code uses {name}, which nothing has set or imported: a defect of this build"
    if of_a_caller(death):
        return (
            "it asks of SGLang what the installed release has not: "
            f"{f'{death.package} was written for another one' if death.package else _OTHER_ONE}"
        )
    if of_somebody(death):
        return (
            "what SGLang offers has not what is asked of it, and no frame here says whose call that was: one of "
            "SGLang's own, which is then a defect of this release, or that of a program that builds on another one"
        )
    if death.type_name == "TypeError" and not NO_VALUE.search(death.message) and (found := CALL.search(death.message)):
        return (
            f"{found[1]} is called with other arguments than it takes: a defect of this build, or two that do not fit"
        )
    found = _ATTRIBUTE.search(death.message) if death.type_name == "AttributeError" else None
    if found and _OF_A_MODEL.search(found[1]):
        return (
            f"the model's class {found[1]} has no {found[2]}, which something that is switched on asks of it: this "
            "release does not have that for this model"
        )
    if found and found[1] != "NoneType":
        return f"{found[1]} has no {found[2]} in this build: a defect of its code, or two packages that do not fit"
    if found:
        return ""
    if "abstract class" in death.message and (found := _ABSTRACT.search(death.message)):
        return f"{found[1]} lacks methods that its base asks for: a defect of this build"
    if (found := _NOT_SO.search(death.message)) and death.type_name == "TypeError":
        return f"its code uses a {found[1].replace('_', ' ')} as what it is not: a defect of this build"
    if _OTHER_TYPE.search(death.message):
        return "its code takes a value of another type than it was given: a defect of this build"
    if death.type_name == "NotImplementedError":
        return "this build has no code for that case"
    # The outermost <module> is the program itself.
    if as_it_was_imported(death):
        return "a package failed as it was imported: two that do not fit each other, or one that is not whole"
    return ""


def as_it_was_imported(death: Death) -> bool:
    """Say whether a package was being imported: nothing that a start or a request asks for was at work."""
    return any(map(_IMPORTS.match, death.frames[1:][-3:]))


_NOT_SO = pattern(
    r"'(module|function|method|type|builtin_function_or_method|property|coroutine)' object is not "
    r"(?:subscriptable|callable|iterable)"
)
_VARIABLE = pattern(r"\bos(?:\.environ|\.getenv|\.environ\.get)?[\[(]\s*[\"']([A-Z][A-Z0-9_]{2,60})[\"']")


def of_a_variable(death: Death) -> tuple[str, ...]:
    """Return what to do about a variable of the environment which the line reads; empty if it reads none."""
    found = _VARIABLE.search(death.statement)
    if found is None:
        return ()
    if death.type_name == "KeyError":
        return (f"set {found[1]} in the environment of the process, as what starts it does: the line reads it",)
    return (
        f"unset {found[1]} in the environment (env | grep {found[1]}; of the image, the pod or a launcher such as "
        "torchrun), or give it a value that the line can read; a later release reads it otherwise",
    )


_NONE = pattern(
    r"'NoneType' object (?:has no attribute '(\w+)'|is not (?:subscriptable|iterable|callable))|"
    r"object of type 'NoneType' has no len|but got \W?None\b"
)
NO_VALUE = pattern(r"\b(?:got|not|but is|received|found):? [`']?None(?:Type)?\b")
"""How a call says that it was given None in the place of a value: arguments are right, and nobody has filled one."""
_LACKS = pattern(r"'?([\w./-]{1,60})'?$")
_SHORT = 120  # characters
UNREACHED = ("ConnectionError", "ConnectError", "ConnectionRefusedError", "APIConnectionError")


def was_none(death: Death) -> bool:
    """Say whether something was None that had to be a value, which tells of no package's release."""
    return "NoneType" in death.message or any(words.search(death.message) for words in (_NONE, NO_VALUE))


def met(death: Death) -> str:
    """Return in words what frequent exceptions of Python say of the values that they met; "" if they say nothing."""
    quotes = death.statement and not death.statement.startswith("raise ")
    line = f", at `{death.statement[:_SHORT]}`" if quotes else ""
    if "values to unpack" in death.message:
        return f"it is handed another number of values than it takes{line}: two parts of this build do not fit"
    if was_none(death):
        return f"a value that it needs was never set, or is gone already (None){line}"
    if death.type_name == "KeyError" and (found := _LACKS.match(death.message)):
        return f"a table has no entry {found[1]}{line}: nobody put it there, or somebody took it out before"
    if death.type_name == "IndexError":
        return f"it asked for an element that is not there{line}: fewer are there than it counts on"
    if death.type_name == "ZeroDivisionError":
        return f"it divides by a number that is 0 here{line}"
    if "consecutive errors" in death.message:
        return "it gave up after several errors in a row, and names the last: the first error above it is the cause"
    if "INTERNAL ASSERT FAILED" in death.message:
        captures = ", as memory was freed or emptied while a CUDA graph is captured" * ("captures" in death.message)
        return (
            f"a check inside torch does not hold{captures}: this release calls torch in a way that its release forbids"
        )
    if death.type_name == "RecursionError":
        return "it called itself without an end"
    if death.type_name.endswith(UNREACHED) and not death.caller:
        return "a client found no server at that address: it is not started, died, or listens elsewhere"
    if death.type_name == "AssertionError" and death.statement.startswith("assert "):
        return f"its own condition does not hold: {death.statement[:_SHORT]}"
    return ""
