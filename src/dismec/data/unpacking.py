"""A path → the uncompressed bytes of a file."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

from dismec.errors import DataError

__all__ = ["STDIN", "UnreadableError", "open_unpacked", "spooled"]

STDIN = Path("-")  # stands for standard input
_BUFFER = 1 << 20
_PACKED = 1 << 18  # bytes of a compressed file read at a time
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Maximum expansion of a compressed file: text shrinks to a third or a tenth, not to a thousandth.
_MOST_TIMES, _ALWAYS = 100, 1 << 25


class UnreadableError(Exception):
    """The rest of a file cannot be read; the message is the reason."""


class _File(io.FileIO):
    """Fills a buffer even from a pipe, so one peek shows the first line; counts its bytes."""

    n_read = 0

    def readinto(self, buffer: Any) -> int:
        view, size = memoryview(buffer).cast("B"), 0
        while size < len(view) and (n := super().readinto(view[size:])):
            size += n
        self.n_read += size
        return size


class _Unpacked(io.RawIOBase):
    """The text of an open compressed file; closing it closes the file.

    If the data are damaged, truncated or a decompression bomb, `UnreadableError` is raised after
    everything before that point has been read.
    """

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        self._file = file
        self._n_made = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as are available, at least one before the end."""
        text = self._next(len(buffer))
        self._n_made += len(text)
        if self._n_made > max(_ALWAYS, _MOST_TIMES * self._taken):
            raise UnreadableError(
                f"the file expands to more than {_MOST_TIMES} times its size from here on; "
                "if that is intended, unpack it first"
            )
        buffer[: len(text)] = text
        return len(text)

    def close(self) -> None:
        self._file.close()
        super().close()

    @property
    def _taken(self) -> int:
        """Approximate number of compressed bytes consumed so far, never too low."""
        return int(self._file.raw.n_read)

    def _next(self, most: int) -> bytes:
        raise NotImplementedError


class _Gunzip(_Unpacked):
    """The text of a gzip file with one or more members."""

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        super().__init__(file)
        self._packed = b""
        self._member = zlib.decompressobj(wbits=31)
        self._n_taken = 0

    @property
    def _taken(self) -> int:
        return self._n_taken

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
        """Return up to `most` more bytes; for damaged data, those before the damage.

        zlib does not return what it decoded before an error, so smaller and smaller pieces are
        tried.
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
                self._n_taken += size - len(left)
                self._packed = left + self._packed[size:]
                return text


class _Unzstd(_Unpacked):
    """The text of a Zstandard file."""

    def __init__(self, file: io.BufferedReader[Any], path: Path) -> None:
        super().__init__(file)
        try:
            from dismec.data.arrow import zstd_stream

            self._text = zstd_stream(file)
        except ModuleNotFoundError:
            file.close()
            raise DataError(
                f"{path}: Zstandard files are read with pyarrow: pip install 'dismec[arrow]'"
            ) from None

    def _next(self, most: int) -> bytes:
        try:
            text: bytes = self._text.read(most)
        except OSError as error:
            raise UnreadableError("the Zstandard data is damaged or cut off here") from error
        return text


def open_unpacked(path: Path, copy: int | None = None) -> Any:
    """Open a file, decompressing it if it starts like gzip or Zstandard data.

    Return a ``BufferedReader``, and whether the file was compressed. `copy` is the descriptor of a
    file to read instead (`spooled`).
    """
    file: io.BufferedReader[Any]
    if copy is not None:
        os.lseek(copy, 0, os.SEEK_SET)
        file = io.BufferedReader(_File(copy, closefd=False), _BUFFER)
    elif path == STDIN:
        file = io.BufferedReader(_File(0, closefd=False), _BUFFER)
    else:
        file = io.BufferedReader(_File(str(path)), _BUFFER)
    start = file.peek(4)
    if start[:2] == _GZIP:
        return io.BufferedReader(_Gunzip(file), _BUFFER // 4), True
    if start[:4] == _ZSTD:
        return io.BufferedReader(_Unzstd(file, path), _BUFFER // 4), True
    return file, False


def spooled(file: io.BufferedReader[Any]) -> int:
    """Return the descriptor of an unlinked temporary file with the rest of a pipe."""
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, _BUFFER)
        copy.flush()
        return os.dup(copy.fileno())
