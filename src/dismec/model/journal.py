"""Receipts of finished blocks ⇄ the journal, an append-only file beside an unfinished manifest.

Replacing the manifest after every block would write thousands of receipts thousands of times.
Instead, the manifest that a run starts with names a journal, and every finished block adds one line
to it: 16 hex digits of a checksum, a space, and the receipt as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path
from types import TracebackType

from dismec.data.files import whole_file
from dismec.errors import ModelError
from dismec.model.format import JOURNAL
from dismec.model.manifest import BlockReceipt, parse_block, receipt_text

__all__ = ["Journal", "make_journal", "read_journal"]

_MOST_BYTES = 1 << 30
_PAGE = bytes(512)  # the smallest unit that a disk writes


def make_journal(directory: Path) -> str:
    """Create an empty journal with a unique name, which no manifest mentions yet."""
    name = f"{JOURNAL[0]}{secrets.token_hex(8)}{JOURNAL[1]}"
    with whole_file(directory / name, follow=False):
        pass
    return name


class Journal:
    """An open journal; receipts are on disk when `append` returns.

    An ``OSError`` has the journal's path as its ``filename``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, *receipts: BlockReceipt) -> None:
        """Add the receipts of blocks whose files are complete.

        The time does not depend on the length of the journal; receipts passed together are flushed
        to disk together.
        """
        texts = [receipt_text(receipt).encode() for receipt in receipts]
        lines = b"".join(b"%s %s\n" % (_checksum(text), text) for text in texts)
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = str(self._path)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read_journal(path: Path) -> list[BlockReceipt]:
    """Return the receipts in a journal, in the order in which blocks were finished.

    An incomplete last line, whose writer was killed, and lines with a page that has not reached the
    disk are ignored: their blocks are solved again. Raise `ModelError` for any other damage, and
    ``FileNotFoundError`` if there is no such file.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ModelError(f"{path}: too large for a journal")
    *lines, _ = path.read_bytes().split(b"\n")  # a line without a newline is incomplete
    receipts = []
    for number, line in enumerate(lines, start=1):
        checksum, _, text = line.partition(b" ")
        if checksum != _checksum(text):
            if _PAGE in line or (number == len(lines) and b"\0" in line):
                continue  # lost in a power cut: later pages may have reached the disk before it
            raise ModelError(
                f"{path}:{number}: damaged (its checksum differs); "
                "delete this line, and its block is solved again"
            )
        try:
            receipts.append(parse_block(json.loads(text)))
        except ValueError as error:
            raise ModelError(f"{path}:{number}: {error}") from None
    return receipts


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()
