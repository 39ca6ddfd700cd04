"""A path → the kind of data file, and its decompressed bytes.

This is the only module that looks at how a file starts; callers pass the result on to the reader.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dismec.data.files import StrPath
from dismec.errors import DataError

STDIN = Path("-")  # stands for standard input
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Maximum expansion of a compressed file: text shrinks to a third or a tenth, not to a thousandth.
_MOST_TIMES, _ALWAYS = 100, 1 << 25

Kind: TypeAlias = Literal[
    "JSON",
    "JSON array",
    "CSV",
    "TSV",
    "fastText",
    "plain text",
    "Parquet",
    "Arrow",
    "XMC text",
    "npz",
    "xmc",
]

# Names for the kinds of files that cannot always be recognized by their content.
KINDS: dict[str, Kind] = {
    "jsonl": "JSON",
    "json": "JSON array",
    "csv": "CSV",
    "tsv": "TSV",
    "fasttext": "fastText",
    "lines": "plain text",
    "parquet": "Parquet",
    "arrow": "Arrow",
    "xmc": "XMC text",
}

BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
_TABLES = ("CSV", "TSV", "Parquet", "Arrow")
_TEXTS = ("JSON", "JSON array", "fastText", "plain text", *_TABLES)
_ENDINGS: dict[str, Kind] = {
    ".jsonl": "JSON",
    ".ndjson": "JSON",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
}
_MAGIC: dict[bytes, Kind] = {b"PK\x03\x04": "npz", b"PAR1": "Parquet", b"ARROW1": "Arrow"}
_BLANKS = r" \t\n\v\f\r"  # where fastText splits: no-break spaces are part of a word
FASTTEXT_LABEL = re.compile(rf"__label__(?<![^{_BLANKS}]__label__)([^{_BLANKS}]*)[{_BLANKS}]*")
_QUOTED = re.compile(r'"[^"]*"')
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_WORD = re.compile(r"(?<!\S)[^\W\d_]{2,}[.,;:!?]?(?!\S)")
_FEATURE = re.compile(r"(?<!\S)-?\d+:")


class DataFile(os.PathLike[str]):
    """A data file whose kind has been detected; usable wherever its path is expected.

    Its `kind` is that of texts ("JSON" lines, a "JSON array", "CSV", "TSV", "fastText" lines,
    "plain text", one per line, "Parquet" or "Arrow"); of rows, "XMC text", with or without a header
    (svmlight); of X, a scipy "npz" file; or of a binary dataset, "xmc". It is closed at the end of
    a ``with`` statement; `DataError` is raised if it cannot be opened.
    """

    def __init__(self, path: StrPath, kind: Kind | None = None) -> None:
        self._place = Path(path)
        self.path = Path("<stdin>") if self._place == STDIN else self._place
        self._file: io.BufferedReader[Any] | None = None
        self._in_use: io.BufferedReader[Any] | None = None  # by a reader that may be suspended
        self._copy: int | None = None
        with self._errors():
            file, packed = open_unpacked(self._place)
        try:
            start = file.peek(_BUFFER)
        except UnreadableError:  # the reader fails again, and names the line
            start = b""
        begin = start.removeprefix(BOM).lstrip()
        self.is_blank = not begin  # as far as it was read
        self.kind: Kind = kind or self._kind(start, begin, packed)
        self.delimiter = _delimiter(begin) if self.kind == "CSV" else "\t"
        self._file = file

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __enter__(self) -> DataFile:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._in_use):
            if file is not None:
                file.close()

    @property
    def is_texts(self) -> bool:
        """Whether the file contains texts with label names."""
        return self.kind in _TEXTS

    @property
    def found(self) -> str | None:
        """Describe what may be unexpected about the file, or return None."""
        if self.kind == "CSV" and self.delimiter != ",":
            return f"columns are separated by {_DELIMITERS[self.delimiter]}"
        if self.kind == "plain text":
            return "read as plain text, one text per line"
        return None

    def read_twice(self) -> DataFile:
        """Make sure that the file can be opened again: a pipe is copied to a temporary file."""
        if self._copy is None and not self._place.is_file() and self._file is not None:
            with self._errors(), self._file:
                self._copy = spooled(self._file)
            self._file = None
            weakref.finalize(self, os.close, self._copy)
        return self

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader[Any]]:
        """Open the decompressed bytes from the start. A pipe can be opened only once."""
        with self._errors():
            file, self._file = self._file, None
            if file is None or file.closed:
                if self._copy is None and not self._place.is_file():
                    raise DataError(f"{self.path}: can be read only once; write it to a file first")
                file = open_unpacked(self._place, self._copy)[0]
            self._in_use = file
            with file:
                yield file

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            name = error.filename if isinstance(error.filename, str) else self.path
            raise DataError(f"{name}: {error.strerror or error}") from error

    def _kind(self, start: bytes, begin: bytes, packed: bool) -> Kind:
        name = Path(re.sub(r"\.(gz|zst)$", "", self._place.name.lower()))
        if kind := _ENDINGS.get(name.suffix):
            return kind
        for magic, kind in _MAGIC.items():
            if not packed and start.startswith(magic):
                return kind
        if self._place.suffix == ".xmc" or (not packed and start[4:9] == b"\0\0\0\0{"):
            return "xmc"
        if begin.startswith((b"{", b"[")):
            return "JSON" if begin.startswith(b"{") else "JSON array"
        line = begin.partition(b"\n")[0]
        if FASTTEXT_LABEL.search(line.decode("latin-1")):
            return "fastText"
        if _is_header(line):
            return "CSV"
        if name.suffix in (".svm", ".svmlight") or not _is_prose(line):
            return "XMC text"
        return "fastText" if FASTTEXT_LABEL.search(begin.decode("latin-1")) else "plain text"


def _is_prose(line: bytes) -> bool:
    """Return whether a line has words of letters and nothing that looks like a feature."""
    try:
        text = line[:4096].decode(errors="ignore" if len(line) > 4096 else "strict")
    except UnicodeDecodeError:
        return False
    return bool(_WORD.search(text)) and not _FEATURE.search(text) and "\0" not in text


def _is_header(line: bytes) -> bool:
    """Return whether a line names the default columns of a table of texts."""
    text = line.decode(errors="replace")
    names = [name.strip(' "') for name in text.rstrip().split(_delimiter(line))]
    return len(names) > 1 and "text" in names


def _delimiter(begin: bytes) -> str:
    """Return the delimiter in the header of a CSV file; a comma unless another is more frequent."""
    header = _QUOTED.sub("", begin.partition(b"\n")[0].decode(errors="replace"))
    return max(_DELIMITERS, key=header.count)


def detect(path: StrPath, kind: str | None = None) -> DataFile:
    """Detect the kind of a data file, unless that is already done; ``-`` is standard input.

    CSV, TSV, JSON lines, Parquet and Arrow files are recognized by their extensions (``.csv``,
    ``.tsv``, ``.jsonl``, ``.ndjson``, ``.parquet``, ``.pq``, ``.arrow``, ``.feather``, the first
    four optionally with ``.gz`` or ``.zst``), other kinds by how the file starts: a header with a
    column ``text`` belongs to a table. `kind`, one of `KINDS`, is for files that neither rule
    recognizes.
    """
    if isinstance(path, DataFile):
        return path
    if kind is not None and kind not in KINDS:
        raise DataError(f"{kind!r} is not a kind of file; expected {', '.join(KINDS)}")
    return DataFile(path, None if kind is None else KINDS[kind])


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
    what could be read before that point.
    """

    def __init__(self, file: io.BufferedReader[Any], text: Any, kind: str) -> None:
        self._file, self._text, self._kind = file, text, kind
        self._n_made = 0
        self._damage: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as are available, at least one before the end."""
        try:
            if self._damage:
                raise self._damage
            text: bytes = self._text.read1(len(buffer))
        except (EOFError, OSError, zlib.error) as error:
            self._damage = error  # the next reader is told as well
            how = "cut off" if isinstance(error, EOFError) else "damaged or cut off"
            raise UnreadableError(f"the {self._kind} data is {how} here") from error
        self._n_made += len(text)
        if self._n_made > max(_ALWAYS, _MOST_TIMES * self._file.raw.n_read):
            raise UnreadableError(
                f"the file expands to more than {_MOST_TIMES} times its size from here on; "
                "if that is intended, unpack it first"
            )
        buffer[: len(text)] = text
        return len(text)

    def close(self) -> None:
        self._file.close()
        super().close()


def arrow_module(what: str) -> Any:
    """Return `dismec.data.arrow`; raise `DataError` that `what` needs pyarrow if it is missing."""
    try:
        import dismec.data.arrow
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise DataError(f"{what} with pyarrow: pip install 'dismec[arrow]'") from None
    return dismec.data.arrow


def _unzstd(file: io.BufferedReader[Any], path: Path) -> Any:
    try:
        return arrow_module(f"{path}: Zstandard files are read").zstd_stream(file)
    except DataError:
        file.close()
        raise


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
        unpacked = _Unpacked(file, gzip.GzipFile(fileobj=file), "gzip")
    elif start[:4] == _ZSTD:
        unpacked = _Unpacked(file, _unzstd(file, path), "Zstandard")
    else:
        return file, False
    return io.BufferedReader(unpacked, _BUFFER // 4), True


def spooled(file: io.BufferedReader[Any]) -> int:
    """Return the descriptor of an unlinked temporary file with the rest of a pipe."""
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, _BUFFER)
        copy.flush()
        return os.dup(copy.fileno())
