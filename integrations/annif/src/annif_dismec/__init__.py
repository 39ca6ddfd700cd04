"""dismec as a backend of Annif; importing this package registers the backend.

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
    """Register ``backend=dismec`` with Annif; a second call has no effect."""
    annif.backend._backend_fns["dismec"] = _backend


def create_app(config_name: str | None = None) -> Any:
    """Create Annif's application for a server, with the dismec backend registered."""
    return annif.create_app(config_name)


register()
