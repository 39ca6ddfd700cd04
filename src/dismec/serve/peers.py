"""The processes of a server as seen by one of them: shared counts and reloads."""

from __future__ import annotations

import asyncio
from typing import Protocol

from dismec.serve.answers import Service
from dismec.serve.prometheus import Metrics

__all__ = ["Alone", "Peers"]


class Peers(Protocol):
    """All processes that answer on a port."""

    async def totals(self) -> Metrics:
        """Return the counts of all processes."""

    async def reload(self) -> bool:
        """Make all processes switch to the model on disk; return False if none did."""


class Alone:
    """The only process."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[bool]] = set()

    async def totals(self) -> Metrics:
        """Return its own counts."""
        return self._metrics

    async def reload(self) -> bool:
        """Switch to the model on disk."""
        async with self._reloading:
            done = await asyncio.to_thread(self._service.reload)
        self._metrics.reloads["ok" if done else "failed"] += 1
        return done

    def reload_in_background(self) -> None:
        """Start a reload without waiting for it."""
        task = asyncio.create_task(self.reload())
        self._reloads.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._reloads.discard)
