"""CPU → the extension module built for its instruction set."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from dismec import _native_base

if TYPE_CHECKING:
    kernels = _native_base

__all__ = ["kernels"]


def _load(wanted: str | None) -> object:
    """Import the best module that the CPU runs, or the one that ``DISMEC_ISA`` names."""
    available = _native_base.cpu_isas()
    if wanted and wanted not in available:
        raise ImportError(
            f"DISMEC_ISA={wanted}: this CPU runs {', '.join(available)}; unset it or name one of them"
        )
    return importlib.import_module(f"dismec._native_{wanted or available[0]}")


if not TYPE_CHECKING:
    kernels = _load(os.environ.get("DISMEC_ISA"))
