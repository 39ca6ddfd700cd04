"""What a disk may hold after a power cut: recorded file operations, replayed in part.

A file's data is on disk once the file is synced, and a change of a directory once the directory is.
What is not synced may be there or not, each piece independently and in any order: a disk that holds
a later rename may have lost an earlier one.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock


@dataclass(eq=False)
class File:
    """A file, whatever its names."""

    first: bytes = b""  # its contents when the recording began
    last: bytes = b""  # its contents when last checked


@dataclass(eq=False)
class Folder:
    """A directory and its contents when the recording began."""

    entries: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    """The complete contents of a file from here on."""

    node: File
    content: bytes


@dataclass(frozen=True)
class Sync:
    node: File | Folder


@dataclass(frozen=True)
class Change:
    """Names of one directory that change their meaning together; None if a name is removed."""

    node: Folder
    names: tuple[tuple[str, File | Folder | None], ...]


Tree = dict[str, bytes | None]  # what each path holds; None for a directory

_TORN = {  # in what state unsynced data may be found on disk
    "whole": lambda piece: piece,
    "cut off": lambda piece: piece[: len(piece) // 2],
    "zeros": lambda piece: piece[: len(piece) // 2].ljust(len(piece), b"\0"),
}
_real_open = io.open


def tree_of(root: Path) -> Tree:
    """Read the actual tree."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


class Recording:
    """A context manager that records what this process does to the files below a directory.

    `operations` are in order. At the end, replaying them must give the actual tree, so nothing was
    missed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.operations: list[Write | Sync | Change] = []
        self.written_in_place: set[str] = set()
        """Names of files that were there, whole, and that were opened to be written to."""
        self._begin = _folder_of(self.root)
        self._now = _now(self._begin)
        self._written: dict[File, Path] = {}  # files that may be written to, with a name of each
        self._lock = threading.RLock()
        self._patches = ExitStack()

    def __enter__(self) -> Recording:
        for name in ("mkdir", "rmdir", "unlink", "rename", "link", "open", "fsync"):
            self._patch(os, name, getattr(self, f"_{name}"))
        self._patch(os, "remove", self._unlink)
        self._patch(os, "replace", self._rename)
        self._patch(io, "open", self._open_file)
        self._patch(builtins, "open", self._open_file)
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._patches.close()
            self._look()
        if error[0] is None:
            assert self.tree(len(self.operations)) == tree_of(self.root)

    def _patch(self, module, name, record) -> None:
        real = getattr(module, name)

        def recorded(*args, **kwargs):
            with self._lock:
                self._look()
                return record(real, *args, **kwargs)

        self._patches.enter_context(mock.patch.object(module, name, recorded))

    # Recording

    def _mkdir(self, real, path, mode=0o777, *, dir_fd=None):
        real(path, mode, dir_fd=dir_fd)
        if place := self._place(path, dir_fd):
            self._change(place[0], (place[1], Folder()))

    def _rmdir(self, real, path, *, dir_fd=None):
        place = self._place(path, dir_fd)
        real(path, dir_fd=dir_fd)
        if place:
            self._change(place[0], (place[1], None))

    _unlink = _rmdir

    def _rename(self, real, source, target, *, src_dir_fd=None, dst_dir_fd=None):
        before, after = self._place(source, src_dir_fd), self._place(target, dst_dir_fd)
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if before is None and after is None:
            return
        assert before, "what is moved here from elsewhere is not known"
        assert after
        moved = self._now[before[0]][before[1]]
        written = moved in self._written
        if before[0] is after[0]:  # atomic
            self._change(after[0], (before[1], None), (after[1], moved))
        else:
            self._change(after[0], (after[1], moved))
            self._change(before[0], (before[1], None))
        if written:
            self._written[moved] = Path(target).absolute()

    def _link(self, real, source, target, **options):
        real(source, target, **options)
        before, after = self._place(source), self._place(target)
        if before is None and after is None:
            return
        assert before
        assert after
        self._change(after[0], (after[1], self._now[before[0]][before[1]]))

    def _open(self, real, path, flags, mode=0o777, *, dir_fd=None):
        handle = real(path, flags, mode, dir_fd=dir_fd)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if writes and flags & os.O_TMPFILE != os.O_TMPFILE:
            self._opened(path, dir_fd, in_place=False)
        return handle

    def _open_file(self, real, path, mode="r", *args, **kwargs):
        file = real(path, mode, *args, **kwargs)
        if not isinstance(path, int) and set(mode) & set("wxa+"):
            self._opened(path, None, in_place="a" not in mode)
        return file

    def _opened(self, path, dir_fd, *, in_place: bool) -> None:
        if not (place := self._place(path, dir_fd)):
            return
        folder, name = place
        known = self._now[folder].get(name)
        if known is None:
            known = File()
            self._change(folder, (name, known))
        elif in_place:
            self.written_in_place.add(name)
        self._written[known] = Path(path).absolute()

    def _fsync(self, real, handle):
        path = _path_of(handle)
        real(handle)
        if path == self.root:
            self.operations.append(Sync(self._begin))
        elif place := self._place(path):
            node = self._now[place[0]].get(place[1])
            if node is not None:
                self.operations.append(Sync(node))

    def _look(self) -> None:
        """Record what files hold that they did not hold before."""
        for file, path in list(self._written.items()):
            try:
                with _real_open(path, "rb") as opened:
                    found = opened.read()
            except FileNotFoundError:
                del self._written[file]
                continue
            if found != file.last:
                file.last = found
                self.operations.append(Write(file, found))

    def _place(self, path, dir_fd=None):
        """Return the folder and the name that a path refers to, if it is below the root."""
        path = (Path.cwd() if dir_fd is None else _path_of(dir_fd)) / path
        if self.root not in path.parents:
            return None
        node = self._begin
        *folders, name = path.relative_to(self.root).parts
        for part in folders:
            node = self._now[node][part]
        return node, name

    def _change(self, folder: Folder, *names) -> None:
        for name, node in names:
            self._written.pop(self._now[folder].get(name), None)  # it lost this name
            if isinstance(node, Folder) and node not in self._now:
                self._now[node] = {}
            if node is None:
                self._now[folder].pop(name)
            else:
                self._now[folder][name] = node
        self.operations.append(Change(folder, names))

    # Replaying

    def tree(self, length: int, chosen=None, torn: str = "whole") -> Tree:
        """Replay the first operations; of those not synced only the `chosen` numbers, or all.

        `torn` says in what state data that is not synced is found.
        """
        synced = self._synced(length)
        entries = _now(self._begin)
        contents: dict[File, bytes] = {}
        for number, operation in enumerate(self.operations[:length]):
            if isinstance(operation, Sync):
                continue
            if chosen is not None and number not in synced and number not in chosen:
                continue
            if isinstance(operation, Write):
                new, before = operation.content, contents.get(operation.node, operation.node.first)
                if number not in synced and chosen is not None:
                    before = before if new.startswith(before) else b""
                    new = before + _TORN[torn](new[len(before) :])
                contents[operation.node] = new
                continue
            for name, node in operation.names:
                known = entries.setdefault(operation.node, {})
                known.pop(name, None)
                if node is not None:
                    known[name] = node
        found: Tree = {}
        _collect(found, "", self._begin, entries, contents)
        return found

    def _synced(self, length: int) -> set[int]:
        """Return the numbers of the operations that a power cut cannot undo."""
        pending: dict[File | Folder, list[int]] = {}
        synced: set[int] = set()
        for number, operation in enumerate(self.operations[:length]):
            if isinstance(operation, Sync):
                synced.update(pending.pop(operation.node, ()))
            else:
                pending.setdefault(operation.node, []).append(number)
        return synced

    def after_power_cuts(self, most: int = 40, seed: int = 0) -> Iterator[tuple[int, Tree]]:
        """Yield the number of operations before a power cut, with a tree it may leave; each once.

        If more than `most` choices are possible, that many are drawn, always including none and all
        of the unsynced operations, and each of them alone present or alone missing.
        """
        rng = random.Random(seed)
        seen: set[tuple] = set()
        for length in range(len(self.operations) + 1):
            for tree in _distinct(self._trees(length, most, rng), seen):
                yield length, tree

    def at_the_end(self, most: int = 200, seed: int = 1) -> Iterator[Tree]:
        """Yield what the disk may hold if the power fails after the last operation; each once."""
        return _distinct(self._trees(len(self.operations), most, random.Random(seed)), set())

    def _trees(self, length: int, most: int, rng: random.Random) -> Iterator[Tree]:
        synced = self._synced(length)
        loose = [
            number
            for number, operation in enumerate(self.operations[:length])
            if number not in synced and not isinstance(operation, Sync)
        ]
        if 2 ** len(loose) <= most:
            sizes = range(len(loose) + 1)
            choices = [set(c) for n in sizes for c in itertools.combinations(loose, n)]
        else:
            choices = [set(), set(loose)]
            choices += [{number} for number in loose]
            choices += [set(loose) - {number} for number in loose]
            while len(choices) < most:
                share = rng.random()
                choices.append({number for number in loose if rng.random() < share})
        for chosen in choices:
            writes = any(isinstance(self.operations[number], Write) for number in chosen)
            for torn in _TORN if writes else ("whole",):
                yield self.tree(length, chosen, torn)


def _distinct(trees: Iterator[Tree], seen: set[tuple]) -> Iterator[Tree]:
    for tree in trees:
        key = tuple(sorted(tree.items()))
        if key not in seen:
            seen.add(key)
            yield tree


def lay_out(tree: Tree, folder: Path) -> Path:
    """Create a tree on disk."""
    folder.mkdir()
    for name, content in tree.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
    return folder


def _path_of(handle: int) -> Path:
    return Path(f"/proc/self/fd/{int(handle)}").readlink()


def _folder_of(path: Path) -> Folder:
    return Folder(
        {
            entry.name: _folder_of(entry) if entry.is_dir() else _file_of(entry)
            for entry in path.iterdir()
        }
    )


def _file_of(path: Path) -> File:
    content = path.read_bytes()
    return File(content, content)


def _now(folder: Folder) -> dict[Folder, dict[str, File | Folder]]:
    """Return the entries of a folder and of its subfolders, to be modified."""
    found = {folder: dict(folder.entries)}
    for node in folder.entries.values():
        if isinstance(node, Folder):
            found |= _now(node)
    return found


def _collect(found: Tree, prefix: str, folder: Folder, entries, contents) -> None:
    for name in sorted(entries.get(folder, ())):
        node = entries[folder][name]
        if isinstance(node, Folder):
            found[prefix + name] = None
            _collect(found, f"{prefix}{name}/", node, entries, contents)
        else:
            found[prefix + name] = contents.get(node, node.first)
