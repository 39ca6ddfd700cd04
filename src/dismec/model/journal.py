"""Receipts of finished blocks ⇄ the journal, an append-only file beside an unfinished manifest.

A manifest that were replaced once per block would be written thousands of times with thousands of
receipts. So the one that a run begins with names a journal, and each finished block adds one line
to it: 16 digits of a checksum, a space, and the receipt as JSON.
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
_PAGE = bytes(512)  # the least that a disk writes at a time


def make_journal(directory: Path) -> str:
    """Make an empty journal under a name of its own; the manifest does not name it yet."""
    name = f"{JOURNAL[0]}{secrets.token_hex(8)}{JOURNAL[1]}"
    with whole_file(directory / name, follow=False):
        pass
    return name


class Journal:
    """A journal that receipts are added to, each on the disk before `append` returns.

    An ``OSError`` has the journal's path as its ``filename``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, *receipts: BlockReceipt) -> None:
        """Name blocks whose files are whole.

        The time does not depend on how many there are already; receipts that come together are
        flushed to the disk together.
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
    """The receipts in a journal, in the order in which blocks were finished.

    A last line that is not whole, because its writer was killed, and lines of which a page has not
    reached the disk, are ignored: their blocks are solved again. Any other damage is a
    `ModelError`. `FileNotFoundError` if there is no such file.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ModelError(f"{path}: larger than a journal can be")
    *lines, _ = path.read_bytes().split(b"\n")  # what no newline ends is not whole
    receipts = []
    for number, line in enumerate(lines, start=1):
        checksum, _, text = line.partition(b" ")
        if checksum != _checksum(text):
            if _PAGE in line or (number == len(lines) and b"\0" in line):
                continue  # after a power cut: what follows has reached the disk, a page has not
            raise ModelError(
                f"{path}:{number}: damaged (its checksum differs); "
                "if this line is deleted, its block is solved again"
            )
        try:
            receipts.append(parse_block(json.loads(text)))
        except ValueError as error:
            raise ModelError(f"{path}:{number}: {error}") from None
    return receipts


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()
