"""A path → what kind of data file is there, and its bytes from the first one on.

The only place that looks at how a file begins: whoever asked passes the answer on to the reader.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dismec.data.gunzip import Gunzip, UnreadableError
from dismec.errors import DataError

__all__ = ["BOM", "FASTTEXT_LABEL", "DataFile", "Kind", "StrPath", "detect"]

StrPath: TypeAlias = str | os.PathLike[str]
Kind: TypeAlias = Literal["JSON", "CSV", "TSV", "fastText", "XMC text", "npz", "xmc"]

BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
_ENDINGS: dict[str, Kind] = {".jsonl": "JSON", ".ndjson": "JSON", ".csv": "CSV", ".tsv": "TSV"}
_BLANKS = r" \t\n\v\f\r"  # what fastText splits at: no-break spaces are part of a word
FASTTEXT_LABEL = re.compile(rf"__label__(?<![^{_BLANKS}]__label__)([^{_BLANKS}]*)[{_BLANKS}]*")


class _File(io.FileIO):
    """Fills a buffer even from a pipe, so that one look shows the first line."""

    def readinto(self, buffer: Any) -> int:
        view, size = memoryview(buffer).cast("B"), 0
        while size < len(view) and (n := super().readinto(view[size:])):
            size += n
        return size


class DataFile(os.PathLike[str]):
    """A data file that has been looked into; stands for its path wherever that is expected.

    Attributes
    ----------
    path
        Where it is.
    kind
        What it holds: texts as "JSON" lines, "CSV", "TSV" or "fastText" lines; rows as "XMC text",
        with a header or without one (svmlight); X as a scipy "npz" file; or a binary dataset,
        "xmc".
    is_blank
        Whether nothing was seen in it but blank space.

    Closed at the end of a ``with`` statement.

    Raises
    ------
    DataError
        If it cannot be opened.
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
        self.is_blank = not begin
        self.kind = self._kind(start, begin, packed=isinstance(file.raw, Gunzip))
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
        """The bytes from the first one on, gunzipped. A pipe can be opened once.

        Raises
        ------
        DataError
            If the system cannot open or read it.
        """
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
        file: io.BufferedReader[Any] = io.BufferedReader(_File(self.path), _BUFFER)
        if file.peek(2)[:2] != b"\x1f\x8b":
            return file
        return io.BufferedReader(Gunzip(file), _BUFFER // 4)

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
