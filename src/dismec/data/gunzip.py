"""A gzip file → its bytes, as a stream; all that is sound is read before an error is raised."""

from __future__ import annotations

import io
import zlib
from typing import Any

__all__ = ["Gunzip", "UnreadableError"]

_PACKED = 1 << 18  # bytes of the file that are read at a time


class UnreadableError(Exception):
    """The bytes of a file are no longer text: why."""


class Gunzip(io.RawIOBase):
    """The text of an open gzip file, of one member or several; closes the file with itself.

    Raises
    ------
    UnreadableError
        Where the data are damaged or cut off, after everything before that place has been read.
    """

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        self._file = file
        self._packed = b""
        self._member = zlib.decompressobj(wbits=31)

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As many bytes as are at hand, at least one before the end."""
        text = self._next(len(buffer))
        buffer[: len(text)] = text
        return len(text)

    def close(self) -> None:
        """Close the file too."""
        self._file.close()
        super().close()

    def _next(self, most: int) -> bytes:
        while True:
            self._packed = self._packed or self._file.read(_PACKED)
            at_end = not self._packed
            if self._member.eof:
                self._packed = self._packed.lstrip(b"\0")  # padding after a member
                if at_end:
                    return b""
                if self._packed:
                    self._member = zlib.decompressobj(wbits=31)
                continue
            text = self._inflated(most)
            if text:
                return text
            if at_end and not self._member.eof:
                raise UnreadableError("the gzip data is cut off here")

    def _inflated(self, most: int) -> bytes:
        """Up to `most` bytes more; of damaged data those before the damage.

        zlib keeps to itself what it has found before an error: less and less is tried.
        """
        size = len(self._packed)
        while True:
            before = self._member.copy()
            try:
                text = self._member.decompress(self._packed[:size], most)
            except zlib.error as error:
                self._member = before
                if size <= 1:
                    raise UnreadableError("the gzip data is damaged here or further on") from error
                size //= 2
            else:
                left = self._member.unused_data or self._member.unconsumed_tail
                self._packed = left + self._packed[size:]
                return text
