"""A pickle read by its opcodes: nothing is imported, called or built, so whoever wrote it can make nothing happen.

pickletools splits the bytes; a stack of inert values follows them. A class is a name, a call is the name with its
arguments. Text is cut, bytes are kept as their length, and what is read ends at limits of file size, opcodes, memo and
time: then what there is by then is returned with `problem`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.safe_file import as_unreadable
from gemma4_triage.readers.reading import MAX_SECONDS
from gemma4_triage.time_limit import Clock

MAX_FILE_BYTES = 256 * 1024**2
MAX_OPCODES = 5_000_000
MAX_MEMO = 2_000_000
LONGEST_STRING = 2_000
_MARK = object()


@dataclass(frozen=True)
class Name:
    """A class or function that the pickle refers to, as "module.name"; never imported."""

    path: str


@dataclass
class Thing:
    """What a call of a Name would have made.

    Attributes:
        made_by: the class or function.
        args: what it was called with.
        state: what was set on it afterwards; None if nothing was.
    """

    made_by: str
    args: Any = field(default=(), repr=False)
    state: Any = field(default=None, repr=False)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute by name, from a dict of state or the dict part of a pair; `default` if it has none."""
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        return next((part[name] for part in parts if isinstance(part, dict) and name in part), default)


@dataclass(frozen=True)
class Blob:
    """Bytes of the pickle, of which only the length is kept."""

    size_bytes: int


@dataclass
class Unpickled:
    """What a pickle holds.

    Attributes:
        value: lists, dicts, tuples, numbers, strings, Thing, Name, Blob.
        problem: why it ended early; "" if it did not.
    """

    value: Any
    problem: str = ""


def read_pickle(path: Path, clock: Clock | None = None) -> Unpickled:
    """Return what a pickle holds, as far as it can be read.

    Raises DumpUnreadable if it has more than MAX_FILE_BYTES, cannot be read, or is no pickle from its first opcode on.
    """
    with as_unreadable(path):
        size = os.path.getsize(path)
        if size > MAX_FILE_BYTES:
            raise DumpUnreadable(f"{path.name} has {size} bytes; of pickles at most {MAX_FILE_BYTES} are read")
        data = path.read_bytes()
    machine = _Machine()
    try:
        problem = machine.run(data, clock or Clock(MAX_SECONDS))
    except (ValueError, IndexError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        problem = f"ends early: {type(error).__name__}: {error}"[:200]
    value = machine.best
    if value is None:
        raise DumpUnreadable(f"{path.name} is no pickle that can be read: {problem or 'it holds nothing'}")
    return Unpickled(value, problem)


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    done: bool = False

    @property
    def best(self) -> Any:
        """The result, or of a torn pickle the outermost container that had begun."""
        values = [value for value in self.stack if value is not _MARK]
        if self.done:
            return values[-1] if values else None
        return next((value for value in values if isinstance(value, dict | list | Thing)), None)

    def run(self, data: bytes, clock: Clock) -> str:
        for count, (opcode, argument, _) in enumerate(_opcodes(data)):
            if count >= MAX_OPCODES or len(self.memo) > MAX_MEMO:
                return f"ends early: more than {MAX_OPCODES} opcodes"
            if count % 4096 == 0 and clock.is_over:
                return "ends early: it took too long"
            if opcode == "STOP":
                self.done = True
                return ""
            step = getattr(self, f"_{opcode.lower()}", None)
            if step is not None:
                step(argument)
            elif opcode in _LITERALS:
                self.stack.append(_literal(argument))
            elif opcode not in _IGNORED:
                return f"ends early: opcode {opcode} is not read"
        return "ends early"

    def _marked(self) -> list[Any]:
        # From the top, so that a mark costs what stands above it, however much lies below.
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def _mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def _pop(self, _: Any) -> None:
        self.stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._marked()

    def _dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def _none(self, _: Any) -> None:
        self.stack.append(None)

    def _newtrue(self, _: Any) -> None:
        self.stack.append(True)

    def _newfalse(self, _: Any) -> None:
        self.stack.append(False)

    def _empty_list(self, _: Any) -> None:
        self.stack.append([])

    _empty_set = _empty_list

    def _empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _empty_tuple(self, _: Any) -> None:
        self.stack.append(())

    def _list(self, _: Any) -> None:
        values = self._marked()
        self.stack.append(values)

    _frozenset = _list

    def _dict(self, _: Any) -> None:
        values = self._marked()
        self.stack.append(_pairs(values))

    def _tuple(self, _: Any) -> None:
        values = self._marked()
        self.stack.append(tuple(values))

    def _tuple1(self, _: Any) -> None:
        self.stack[-1:] = [(self.stack[-1],)]

    def _tuple2(self, _: Any) -> None:
        self.stack[-2:] = [tuple(self.stack[-2:])]

    def _tuple3(self, _: Any) -> None:
        self.stack[-3:] = [tuple(self.stack[-3:])]

    def _append(self, _: Any) -> None:
        value = self.stack.pop()
        self._extend([value])

    def _appends(self, _: Any) -> None:
        self._extend(self._marked())

    _additems = _appends

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Thing):
            # A subclass of list or set, whose elements come after it was made.
            if not isinstance(target.state, list):
                target.state = []
            target.state.extend(values)

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def _setitems(self, _: Any) -> None:
        self._update(self._marked())

    def _update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(_pairs(values))
        elif isinstance(target, Thing):
            if not isinstance(target.state, dict):
                target.state = {}
            target.state.update(_pairs(values))

    def _put(self, at: int) -> None:
        self.memo[at] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, at: int) -> None:
        self.stack.append(self.memo[at])

    _binget = _long_binget = _get

    def _global(self, argument: str) -> None:
        self.stack.append(Name(str(argument).replace(" ", ".", 1)[:LONGEST_STRING]))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        # A tuple that holds another one twice, and so on, is short here and endless as text.
        if not (isinstance(name, str) and isinstance(module, str)):
            raise TypeError("a class whose name is no text")
        self.stack.append(Name(f"{module}.{name}"[:LONGEST_STRING]))

    def _reduce(self, _: Any) -> None:
        args, made_by = self.stack.pop(), self.stack.pop()
        self.stack.append(Thing(_path(made_by), args))

    _newobj = _reduce

    def _newobj_ex(self, _: Any) -> None:
        named, args, made_by = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.stack.append(Thing(_path(made_by), (args, named)))

    def _inst(self, argument: str) -> None:
        self.stack.append(Thing(str(argument).replace(" ", ".", 1)[:LONGEST_STRING], tuple(self._marked())))

    def _obj(self, _: Any) -> None:
        made_by, *args = self._marked()
        self.stack.append(Thing(_path(made_by), tuple(args)))

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Thing):
            target.state = state

    def _persid(self, argument: str) -> None:
        self.stack.append(Thing("persistent id", (_literal(argument),)))

    def _binpersid(self, _: Any) -> None:
        self.stack[-1] = Thing("persistent id", (self.stack[-1],))


_LITERALS = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING"),
        *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    }
)
_IGNORED = frozenset({"PROTO", "FRAME"})


def _opcodes(data: bytes) -> Iterator[tuple[str, Any, int | None]]:
    # Here, because its table of opcodes takes longer to make than most files to read.
    import pickletools

    for opcode, argument, position in pickletools.genops(data):
        yield opcode.name, argument, position


def _literal(value: Any) -> Any:
    if isinstance(value, str):
        return value[:LONGEST_STRING]
    if isinstance(value, bytes | bytearray):
        return Blob(len(value))
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return Blob(value.bit_length() // 8)
    return value


def _path(value: Any) -> str:
    return value.path if isinstance(value, Name) else type(value).__name__


def _pairs(values: list[Any]) -> dict[Any, Any]:
    """Keys and values that alternate; a key that is neither text nor number is left out."""
    pairs = zip(values[::2], values[1::2], strict=False)
    return {key: value for key, value in pairs if isinstance(key, str | int | float | bool) or key is None}
