"""dismec as a backend of Annif; importing this package is what makes Annif know it.

Annif has a table of its own backends and no entry point for others. `register` adds one line to it;
the backend itself, and dismec with it, is imported when a project first uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import annif
import annif.backend

if TYPE_CHECKING:
    from annif_dismec.backend import DismecBackend

__all__ = ["create_app", "register"]


def _backend() -> type[DismecBackend]:
    from annif_dismec.backend import DismecBackend

    return DismecBackend


def register() -> None:
    """Make Annif know ``backend=dismec``; nothing happens the second time."""
    annif.backend._backend_fns["dismec"] = _backend


def create_app(config_name: str | None = None) -> Any:
    """Annif's own application for servers, where ``annif:create_app`` would not know dismec."""
    return annif.create_app(config_name)


register()
