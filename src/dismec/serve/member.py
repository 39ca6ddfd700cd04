"""One of several server processes: connections accepted by the first process → answers.

`dismec.serve.supervisor` starts it as ``python -m dismec.serve.member N``, where N is its end of
the channel between them.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from dismec.errors import DismecError, NotReady
from dismec.serve.answers import Served, Service
from dismec.serve.prometheus import Metrics
from dismec.serve.server import HttpServer, Settings, start_log

assert sys.platform == "linux"

from dismec.serve.channel import Channel, Message  # noqa: E402  it has nothing elsewhere

__all__: list[str] = []


class _Member:
    """Handles the orders that the process gets, and its requests to the other processes."""

    def __init__(self, channel: Channel, service: Service, metrics: Metrics) -> None:
        self.server: HttpServer
        self._channel = channel
        self._service = service
        self._metrics = metrics
        self._opened: Served | None = None  # the model to switch to
        self._closed = 0  # closed connections
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def totals(self) -> Metrics:
        """Return the counts of all processes."""
        found = Metrics()
        found.processes = 0
        found.add((await self._ask("totals"))["counts"])
        return found

    async def reload(self) -> bool:
        """Make all processes switch to the model on disk."""
        return bool((await self._ask("reload"))["done"])

    async def _ask(self, what: str) -> Message:
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            if not self._channel.send({"ask": what, "number": number}):
                raise NotReady("the server's first process does not answer")
            return await answer
        finally:
            del self._asked[number]

    def begin(self) -> None:
        """Start accepting connections and orders."""
        # Ctrl-C reaches every process of a terminal, but the first one ends the others.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._receive)
        self._channel.send({"ready": self._service.describe()})

    def note_closed(self) -> None:
        """Report closed connections. The total is sent, because a message may get lost."""
        self._closed += 1
        self._channel.send({"closed": self._closed})

    def _receive(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                self._handle(*received)
        except EOFError:  # the first process is gone
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self.server.should_exit = True

    def _handle(self, order: Message, connection: socket.socket | None) -> None:
        match order["do"]:
            case "take" if connection is not None:
                self._start(self.server.take(connection))
            case "count":
                self._reply(order, counts=self._metrics.to_dict())
            case "open":
                self._start(self._open(order))
            case "switch":
                if self._opened is not None:
                    self._service.served, self._opened = self._opened, None
                self._reply(order)
            case "forget":
                self._opened = None
            case "hear":
                if (asked := self._asked.get(order["number"])) is not None and not asked.done():
                    asked.set_result(order)
            case "stop":
                self.server.should_exit = True

    async def _open(self, order: Message) -> None:
        opened = await asyncio.to_thread(self._service.open_again, Path(order["path"]))
        if isinstance(opened, str):
            self._reply(order, failed=opened)
        else:
            self._opened = opened
            self._reply(order, model=self._service.describe(opened))

    def _reply(self, order: Message, **answer: Any) -> None:
        self._channel.send({"answer": order["round"], **answer})

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)


def _main(file: int) -> int:
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    start_log()
    channel = Channel(socket.socket(fileno=file))
    channel.wait()
    received = channel.receive()
    if received is None:
        return 1
    order, _ = received
    settings = Settings.from_dict(order["settings"])
    try:
        tree = None if settings.hierarchy is None else Path(settings.hierarchy)
        path, directory = Path(order["path"]), Path(order["directory"])
        service = Service(path, None, settings.limits, directory, tree)
    except MemoryError:
        channel.send({"failed": "out of memory"})
        return 1
    except DismecError as error:
        channel.send({"failed": str(error)})
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        channel.send({"failed": f"{place}{error.strerror or error}"})
        return 1
    metrics = Metrics()
    member = _Member(channel, service, metrics)
    member.server = HttpServer(service, metrics, member, settings, member.begin, member.note_closed)
    member.server.run(sockets=[])
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
