"""A path → what kind of data file is there, and its bytes from the first one on, gunzipped.

The only place that looks at how a file begins: whoever asked passes the answer on to the reader.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dismec.data.files import StrPath
from dismec.errors import DataError

__all__ = ["BOM", "FASTTEXT_LABEL", "DataFile", "Kind", "UnreadableError", "detect"]

Kind: TypeAlias = Literal["JSON", "CSV", "TSV", "fastText", "XMC text", "npz", "xmc"]

BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
_PACKED = 1 << 18  # bytes of a gzip file that are read at a time
_ENDINGS: dict[str, Kind] = {".jsonl": "JSON", ".ndjson": "JSON", ".csv": "CSV", ".tsv": "TSV"}
_BLANKS = r" \t\n\v\f\r"  # what fastText splits at: no-break spaces are part of a word
FASTTEXT_LABEL = re.compile(rf"__label__(?<![^{_BLANKS}]__label__)([^{_BLANKS}]*)[{_BLANKS}]*")


class UnreadableError(Exception):
    """The bytes of a file are no longer text: why."""


class _File(io.FileIO):
    """Fills a buffer even from a pipe, so that one look shows the first line."""

    def readinto(self, buffer: Any) -> int:
        view, size = memoryview(buffer).cast("B"), 0
        while size < len(view) and (n := super().readinto(view[size:])):
            size += n
        return size


class _Gunzip(io.RawIOBase):
    """The text of an open gzip file, of one member or several; closes the file with itself.

    Where the data are damaged or cut off it raises `UnreadableError`, after everything before that
    place has been read.
    """

    def __init__(self, file: io.BufferedReader[Any]) -> None:
        self._file = file
        self._packed = b""
        self._member = zlib.decompressobj(wbits=31)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As many bytes as are at hand, at least one before the end."""
        text = self._next(len(buffer))
        buffer[: len(text)] = text
        return len(text)

    def close(self) -> None:
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


class DataFile(os.PathLike[str]):
    """A data file that has been looked into; stands for its path wherever that is expected.

    Its `kind` is that of texts, "JSON" lines, "CSV", "TSV" or "fastText" lines; of rows as "XMC
    text", with a header or without one (svmlight); of X as a scipy "npz" file; or of a binary
    dataset, "xmc". Closed at the end of a ``with`` statement; a `DataError` if it cannot be opened.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        self._file: io.BufferedReader[Any] | None = None
        with self._errors():
            file = self._opened()
        try:
            start = file.peek(_BUFFER)
        except UnreadableError:  # the reader meets it again and says in which line
            start = b""
        begin = start.removeprefix(BOM).lstrip()
        self.is_blank = not begin  # so far as was seen
        self.kind = self._kind(start, begin, packed=isinstance(file.raw, _Gunzip))
        self._file = file

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __enter__(self) -> DataFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def is_texts(self) -> bool:
        """Whether it holds texts with the names of their labels."""
        return self.kind in ("JSON", "CSV", "TSV", "fastText")

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader[Any]]:
        """The bytes from the first one on, gunzipped. A pipe can be opened once."""
        with self._errors():
            file, self._file = self._file, None
            if file is None or file.closed:
                if not self.path.is_file():
                    raise DataError(f"{self.path}: can be read only once; write it to a file first")
                file = self._opened()
            with file:
                yield file

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"{error.filename or self.path}: {error.strerror or error}") from error

    def _opened(self) -> io.BufferedReader[Any]:
        file: io.BufferedReader[Any] = io.BufferedReader(_File(str(self.path)), _BUFFER)
        if file.peek(2)[:2] != b"\x1f\x8b":
            return file
        return io.BufferedReader(_Gunzip(file), _BUFFER // 4)

    def _kind(self, start: bytes, begin: bytes, packed: bool) -> Kind:
        name = Path(self.path.name.lower().removesuffix(".gz"))
        if kind := _ENDINGS.get(name.suffix):
            return kind
        if not packed and start.startswith(b"PK\x03\x04"):
            return "npz"
        if self.path.suffix == ".xmc" or (not packed and start[4:9] == b"\0\0\0\0{"):
            return "xmc"
        if begin.startswith(b"{"):
            return "JSON"
        if FASTTEXT_LABEL.search(begin.partition(b"\n")[0].decode("latin-1")):
            return "fastText"
        return "XMC text"


def detect(path: StrPath) -> DataFile:
    """Look into a data file, unless that has been done already.

    CSV, TSV and JSON lines are known by their endings (``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``,
    with or without ``.gz``), other kinds by how the file begins.
    """
    return path if isinstance(path, DataFile) else DataFile(path)
