"""What gzip, bzip2 and xz files hold, as far as they are whole: the standard library's readers lose what came before.

One file may be several packed ones, end to end, as `cat a.gz b.gz` writes them, padded with zeros.
"""

from __future__ import annotations

import contextlib
import importlib
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

_READ_BYTES = 1 << 16
_PIECE_BYTES = 1 << 14
"""How much is unpacked at once. Of bzip2 and xz a damaged place takes so much with it."""
_MOST_MEMORY = 1 << 28
"""Of xz, whose file says how much it takes; a log of `xz -9` takes a quarter."""


class Torn(Exception):
    """A packed file is damaged, or ends before its end. Its text is a clause that says which."""


def _gzip() -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


def _bzip2() -> Any:
    return importlib.import_module("bz2").BZ2Decompressor()


def _xz() -> Any:
    lzma = importlib.import_module("lzma")
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY)


_KINDS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\x1f\x8b": ("gzip", _gzip),
    b"BZh": ("bzip2", _bzip2),
    b"\xfd7zXZ\x00": ("xz", _xz),
}
LONGEST_MAGIC = max(map(len, _KINDS))


def is_packed(start: bytes) -> bool:
    """Return whether a file with these first bytes is packed in a way that is read."""
    return start.startswith(tuple(_KINDS))


class Packed:
    """A packed file as a stream of what it holds.

    Args:
        raw: The packed bytes.
        start: The first of them, at least LONGEST_MAGIC; they are still in `raw`.
    """

    def __init__(self, raw: BinaryIO, start: bytes) -> None:
        self._raw = raw
        self._magic, (self._name, self._make) = next(item for item in _KINDS.items() if start.startswith(item[0]))
        self._ahead = b""
        self._stream: Any = None
        self._torn: Torn | None = None

    def read(self, size: int) -> bytes:
        """Return about `size` bytes, fewer at the end, none behind it. Raises Torn once what is whole was returned."""
        found = bytearray()
        try:
            while self._torn is None and len(found) < size and (piece := self._piece()):
                found += piece
        except Torn as torn:
            self._torn = torn
        if self._torn is not None and not found:
            raise self._torn
        return bytes(found)

    def _piece(self) -> bytes:
        """Return the next bytes, none at the end of it all. Raises Torn."""
        while self._stream is not None or self._begins():
            stream: Any = self._stream
            before = stream.copy() if hasattr(stream, "copy") else None
            try:
                piece = stream.decompress(self._ahead, _PIECE_BYTES)
            # zlib.error, OSError, LZMAError, MemoryError: each library has its own, and none other is expected here.
            except Exception as error:
                self._torn = Torn(f"its {self._name} is damaged: {error}")
                if before is None:
                    raise self._torn from error
                return _byte_by_byte(before, self._ahead)
            ended = stream.eof
            # zlib hands back what it did not get to; the others keep it.
            self._ahead = stream.unused_data if ended else getattr(stream, "unconsumed_tail", b"")
            if ended:
                self._stream = None
            if piece:
                return piece
            if not ended and not self._ahead and not self._reads_on():
                raise Torn(f"its {self._name} is torn")
        return b""

    def _begins(self) -> bool:
        """Begin with the next packed file, if there is one. Raises Torn for what is none."""
        self._ahead = self._ahead.lstrip(b"\0")
        more = True
        while more and len(self._ahead) < LONGEST_MAGIC:
            more = self._reads_on()
            self._ahead = self._ahead.lstrip(b"\0")
        if not self._ahead:
            return False
        if not self._ahead.startswith(self._magic):
            raise Torn(f"what follows its {self._name} is none")
        self._stream = self._make()
        return True

    def _reads_on(self) -> bool:
        """Add what comes next of the packed bytes to those ahead; False at the end. Raises Torn."""
        try:
            more = getattr(self._raw, "read1", self._raw.read)(_READ_BYTES)
        except OSError as error:
            raise Torn(f"it cannot be read on: {error.strerror or error}") from error
        self._ahead += more
        return bool(more)


def _byte_by_byte(stream: Any, packed: bytes) -> bytes:
    """Return what a stream of zlib unpacks before it comes to damage."""
    found = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(len(packed)):
            found += stream.decompress(packed[at : at + 1])
    return bytes(found)
