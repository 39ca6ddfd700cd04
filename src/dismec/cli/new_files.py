"""Files that a command will write, checked before anything is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dismec.errors import DismecError

__all__ = ["check_new_files"]


def check_new_files(
    *targets: Path | None,
    overwrite: bool,
    sources: Iterable[Path | None] = (),
    makes_folder: bool = False,
) -> None:
    """Reject files that cannot be written, or that exist and may not be overwritten.

    A device or a pipe is always accepted, and one of the `sources` never. `makes_folder` is for
    commands that create the directories of their files.
    """
    seen = set()
    for target in filter(None, targets):
        if target.is_dir():
            raise DismecError(f"{target} is a directory: give the name of a file")
        if not makes_folder and not target.parent.is_dir():
            raise DismecError(f"{target.parent}: no such directory")
        if target.resolve() in seen:
            raise DismecError(f"{target} is given twice: choose different files")
        seen.add(target.resolve())
        if not target.is_file():
            continue
        if any(source is not None and _is_same(target, source) for source in sources):
            raise DismecError(f"{target} is read by this command: choose another file")
        if not overwrite:
            raise DismecError(f"{target} exists: choose another file, or use --overwrite")


def _is_same(target: Path, source: Path) -> bool:
    return source.exists() and target.samefile(source)
