"""Arrays ⇄ files of a model, which are compared with their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from dismec.data.container import ContainerError, open_arrays, write_arrays
from dismec.errors import ModelError
from dismec.model.format import FORMAT, FORMAT_VERSION

__all__ = ["open_checked", "sha256_of", "write_hashed"]


def write_hashed(path: Path, arrays: Mapping[str, npt.NDArray[Any]], **metadata: str) -> str:
    """Write a file of arrays and return its SHA-256; the metadata name the format too."""
    write_arrays(path, arrays, {"format": FORMAT, "version": str(FORMAT_VERSION), **metadata})
    return sha256_of(path)


def open_checked(
    path: Path, sha256: str | None, size: int | None = None
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The arrays and metadata of a file that must have this SHA-256 and size, if they are given.

    Raises
    ------
    ModelError
        If the file is missing, cut off, altered or no file of arrays.
    """
    try:
        if size is not None and path.stat().st_size != size:
            raise ModelError(
                f"{path}: {path.stat().st_size} bytes, the manifest says {size}; cut off or altered"
            )
        if sha256 is not None and sha256_of(path) != sha256:
            raise ModelError(f"{path}: altered since it was written (SHA-256 differs)")
        return open_arrays(path)
    except FileNotFoundError:
        raise ModelError(f"{path}: missing, though the manifest names it") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ContainerError as error:
        raise ModelError(f"{path}: {error}") from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
