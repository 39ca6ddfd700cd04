"""XMC and svmlight text ⇄ the arrays of CSR matrices.

The text is parsed natively on all cores, one block of whole lines at a time. Blocks are returned in
order, so neither the result nor the first error depends on the number of threads; the text itself,
gzipped or not, is streamed and never completely in memory.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dismec.cpu import kernels, thread_count
from dismec.data.counts import counted
from dismec.data.formats import UnreadableError
from dismec.data.matrices import MAX_COLUMNS, Rows, row_pointers
from dismec.errors import DataError

_BLOCK = 1 << 20  # bytes of text parsed by one thread at a time
_LONGEST_LINE = 1 << 28
_LONGEST_HEADER = 1000
# A row takes more memory than a blank line takes in a file, so the number of blank lines and their
# share of all rows are limited.
_MOST_BLANK, _BLANK_SHARE = 1 << 20, 0.9
_HEADER = re.compile(rb"[ \t]*([0-9]+)[ \t]+([0-9]+)[ \t]+([0-9]+)[ \t]*\r?")

_Wanted: TypeAlias = tuple[int | None, int | None]
_Parsed: TypeAlias = tuple[
    NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]
]


def read_xmc_text(
    path: Path, file: BufferedReader, wanted: _Wanted, threads: int | None
) -> tuple[Rows, tuple[NDArray[Any], NDArray[np.int32]], tuple[int, int]]:
    """Read X, (indptr, indices) of Y, and their numbers of columns, from text; header optional.

    `file` holds the uncompressed bytes (`dismec.data.formats.DataFile.open`); `path` is its name in
    errors. The numbers of features and labels must be those in `wanted`, where given. Ids are
    sorted and unique within a row; values are finite. The first invalid line raises `DataError`,
    regardless of the number of threads. Row pointers have 32 bits if possible.
    """
    header, blocks = _parsed_blocks(path, file, wanted, threads)
    parts: list[list[NDArray[Any]]] = [[], [], [], [], []]
    for arrays in blocks:
        for part, array in zip(parts, arrays, strict=True):
            part.append(array)
    y_indptr, x_indptr = (_pointers_of(parts[place]) for place in (0, 2))
    labels, features, values = (_join(parts[place]) for place in (1, 3, 4))
    if header:
        n_features, n_labels = header[1:]
    else:
        n_features, n_labels = (
            int(ids.max(initial=-1)) + 1 if size is None else size
            for ids, size in zip((features, labels), wanted, strict=True)
        )
    return Rows(x_indptr, features, values), (y_indptr, labels), (n_features, n_labels)


def xmc_text_batches(
    path: Path, file: BufferedReader, threads: int | None
) -> Iterator[tuple[Rows, int]]:
    """Yield X in batches of rows, with the number of its columns.

    Without a header, the largest feature of the batch determines it. Errors are those of
    `read_xmc_text`, raised after the rows before them.
    """
    header, blocks = _parsed_blocks(path, file, (None, None), threads)
    for arrays in blocks:
        lengths, features, values = arrays[2:]
        n_columns = header[1] if header else int(features.max(initial=-1)) + 1
        yield Rows(row_pointers([lengths]), features, values), n_columns


def _parsed_blocks(
    path: Path, file: BufferedReader, wanted: _Wanted, threads: int | None
) -> tuple[tuple[int, int, int] | None, Iterator[_Parsed]]:
    """Return the header, if any, and the blocks of the text in order."""
    header: tuple[int, int, int] | None = None

    def refuse(row: int, reason: str) -> NoReturn:
        raise DataError(f"{path}:{row + 1 + (header is not None)}: {reason}") from None

    def refuse_row(row: int, reason: str) -> NoReturn:
        if header and row >= header[0]:
            row, reason = (
                header[0],
                f"the header says {counted(header[0], 'row')}, but there is one more",
            )
        refuse(row, reason)

    blocks = _whole_lines(iter(lambda: file.read1(_BLOCK), b""))
    try:
        first = next(blocks, b"") or next(blocks, b"")
    except UnreadableError as error:
        refuse(0, str(error))
    if not first:
        refuse(0, "the file is empty")
    line, newline, _ = first[:_LONGEST_HEADER].partition(b"\n")
    if match := _HEADER.fullmatch(line):
        if not newline:
            refuse(0, "the file ends within the header: it is cut off")
        header = _header(path, match.groups(), wanted)
        first = first[len(line) + 1 :]
    limits = header[1:] if header else tuple(MAX_COLUMNS if w is None else w for w in wanted)

    def parse(block: bytes) -> _Parsed:
        return kernels.parse_rows(np.frombuffer(block, np.uint8), *limits)

    def checked() -> Iterator[_Parsed]:
        n_rows, n_blank, n_threads = 0, 0, thread_count(threads)
        with ThreadPoolExecutor(n_threads) as pool:
            parsed = _parsed_in_order(pool, parse, first, blocks, ahead=n_threads)
            while True:
                try:
                    arrays = next(parsed, None)
                except UnreadableError as error:
                    refuse(n_rows, str(error))
                except ValueError as error:
                    row, reason = error.args
                    refuse_row(n_rows + row, reason)
                if arrays is None:
                    break
                n_rows += len(arrays[0])
                if header and n_rows > header[0]:
                    refuse_row(n_rows, "")
                n_blank += int(np.count_nonzero((arrays[0] == 0) & (arrays[2] == 0)))
                if n_blank > max(_MOST_BLANK, _BLANK_SHARE * n_rows):
                    refuse(
                        n_rows - 1,
                        f"{n_blank:,} of the {n_rows:,} rows so far have neither labels nor "
                        "features: this is not a data file",
                    )
                yield arrays
        if header and n_rows < header[0]:
            refuse(
                n_rows - 1, f"the file ends here, but the header says {counted(header[0], 'row')}"
            )

    return header, checked()


def write_xmc_text(X: Any, Y: Any, file: Any, *, header: bool) -> None:
    """Write valid CSR matrices as text, with the fewest digits that read back the same values."""
    n_rows = X.shape[0]
    if header:
        file.write(b"%d %d %d\n" % (n_rows, X.shape[1], Y.shape[1]))
    x_indptr, y_indptr = X.indptr.astype(np.int64), Y.indptr.astype(np.int64)
    step = max(1, (n_rows << 18) // (X.nnz + Y.nnz + 1))
    for begin in range(0, n_rows, step):
        end = min(begin + step, n_rows)
        arrays = (x_indptr, X.indices, X.data, y_indptr, Y.indices)
        file.write(kernels.format_rows(*arrays, begin, end))


def _header(path: Path, words: Sequence[bytes], wanted: _Wanted) -> tuple[int, int, int]:
    for word, what in zip(words, ("rows", "features", "labels"), strict=True):
        if len(word) > 18 or (what != "rows" and int(word) > MAX_COLUMNS):
            raise DataError(f"{path}:1: the header says {word.decode()} {what}, which is too many")
    n_rows, *found = (int(word) for word in words)
    for size, want, what in zip(found, wanted, ("features", "labels"), strict=True):
        if want is not None and size != want:
            raise DataError(f"{path}:1: the header says {size} {what}; expected {want}")
    return n_rows, found[0], found[1]


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks of about ``_BLOCK`` bytes that end at a line end, or at the end of the file."""
    held: list[bytes | memoryview] = []
    size = 0
    try:
        for piece in pieces:
            cut = piece.rfind(b"\n") + 1
            if cut and size + cut >= _BLOCK:
                yield b"".join([*held, memoryview(piece)[:cut]])
                held, size = [memoryview(piece)[cut:]], len(piece) - cut
            else:
                held.append(piece)
                size += len(piece)
            if size > _LONGEST_LINE:
                raise UnreadableError("the line is longer than any row: this is not text")
    except UnreadableError:  # the lines before it still count
        rest = b"".join(held)
        yield rest[: rest.rfind(b"\n") + 1]
        raise
    if size:
        yield b"".join(held)


def _parsed_in_order(
    pool: ThreadPoolExecutor,
    parse: Callable[[bytes], _Parsed],
    first: bytes,
    blocks: Iterator[bytes],
    ahead: int,
) -> Iterator[_Parsed]:
    """Yield parsed blocks in order, with few of them in memory as text.

    If the text breaks off, the blocks before it come first, including an error in them.
    """
    pending: deque[Future[_Parsed]] = deque([pool.submit(parse, first)])
    broken = None
    try:
        for block in blocks:
            if len(pending) > ahead:
                yield pending.popleft().result()
            pending.append(pool.submit(parse, block))
    except UnreadableError as error:
        broken = error
    while pending:
        yield pending.popleft().result()
    if broken:
        raise broken


def _pointers_of(lengths: list[NDArray[Any]]) -> Any:
    pointers = row_pointers(lengths, None)
    lengths.clear()
    return pointers


def _join(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    joined = np.concatenate(arrays)
    arrays.clear()  # each array is freed before the next is joined
    return joined
