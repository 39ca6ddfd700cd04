"""The first of several server processes: it accepts connections, and the others answer.

A connection goes to the process with the fewest. A process that ends unexpectedly is replaced, and
only the requests it was answering are lost. All processes open a new model before any switches to
it.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dismec.errors import DismecError
from dismec.serve.answers import log_not_reloaded, log_reloaded
from dismec.serve.prometheus import Metrics

assert sys.platform == "linux"

from dismec.serve.channel import Channel, Message  # noqa: E402  it has nothing elsewhere

__all__ = ["Supervisor"]

_BACKLOG = 2048  # connections waiting to be accepted
_AT_ONCE = 64  # connections accepted before checking everything else
_TOTAL_SECONDS = 5.0  # for a process to report its counts
_STOP_SECONDS = 75.0  # for processes to end: more than they allow for requests in flight
_RETRY_SECONDS = (1.0, 30.0)  # range of delays before replacing a process that was never ready
_ROOM_SECONDS = 0.01  # before a connection is offered again after no process had room for it

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Worker:
    """One of the processes that answer."""

    process: subprocess.Popen[bytes]
    channel: Channel
    ready: bool = False
    given: int = 0  # connections so far
    closed: int = 0  # closed connections
    model: Any = None  # as described by ``/model``
    counts: Message | None = None  # as last reported

    @property
    def load(self) -> tuple[int, int]:
        """Number of connections now, and in total."""
        return self.given - self.closed, self.given


@dataclass
class _Round:
    """A question to all workers, and the function that handles their answers."""

    waiting: set[_Worker]
    done: Callable[[dict[_Worker, Message]], None]
    end: float
    answers: dict[_Worker, Message] = field(default_factory=dict)


class Supervisor:
    """The processes that answer on one port.

    Parameters
    ----------
    path
        The model directory, or a link to it.
    settings
        The settings of each process, for JSON.
    workers
        Number of processes that answer.
    listener
        A socket bound to the port; it is closed at the end.
    """

    def __init__(
        self, path: Path, settings: dict[str, Any], workers: int, listener: socket.socket
    ) -> None:
        self._path, self._directory = path, path.resolve()
        self._settings = settings
        self._n_workers = workers
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._restarts: list[float] = []  # when to start another process
        self._failures = 0  # consecutive processes that never got ready
        self._rounds: dict[int, _Round] = {}
        self._numbers = itertools.count()
        self._asking: list[tuple[_Worker, int]] = []  # waiting for a reload that has not started
        self._reloading: list[tuple[_Worker, int]] | None = None  # waiting for the current reload
        self._reload_wanted = False
        self._undelivered: socket.socket | None = None
        self._counts = Metrics()  # counts of ended processes, and reloads
        self._counts.processes = 0
        self._begun = False  # all processes have been ready
        self._stopped_by: list[int] = []  # signals received

    def run(self, begun: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; `begun` is called when every process answers.

        Raises
        ------
        DismecError
            If a process cannot open the model.
        KeyboardInterrupt
            After SIGINT, when everything has finished.
        """
        try:
            with self._signals(), self._selector:
                self._listener.listen(_BACKLOG)
                self._listener.setblocking(False)
                for _ in range(self._n_workers):
                    self._start()
                while not self._stopped_by and not all(w.ready for w in self._workers):
                    self._turn()
                if not self._stopped_by:
                    self._begun = True
                    self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
                    begun()
                while not self._stopped_by:
                    self._turn()
                self._stop()
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.wait()
        if signal.SIGINT in self._stopped_by:
            raise KeyboardInterrupt

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Make signals end a wait, and record them."""
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            there.setblocking(False)
            self._selector.register(here, selectors.EVENT_READ, lambda: here.recv(1 << 12))
            old = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, _: self._stopped_by.append(number))
            signal.signal(signal.SIGHUP, lambda *_: setattr(self, "_reload_wanted", True))
            try:
                yield
            finally:
                signal.set_wakeup_fd(old)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for number in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)

    def _turn(self) -> None:
        """Wait until something happens, and handle it."""
        now = time.monotonic()
        ends = [*self._restarts, *(one.end for one in self._rounds.values())]
        if self._undelivered is not None:
            ends.append(now + _ROOM_SECONDS)
        first = min(ends, default=math.inf)
        for key, _ in self._selector.select(None if first == math.inf else max(0.0, first - now)):
            key.data()
        now = time.monotonic()
        for number in [n for n, one in self._rounds.items() if one.end <= now]:
            self._close_round(number)
        for due in [due for due in self._restarts if due <= now]:
            self._restarts.remove(due)
            self._start()
        if self._undelivered is not None:
            self._deliver()
        if self._reload_wanted and self._reloading is None and self._begun:
            self._reload_wanted = False
            self._reload()

    def _start(self) -> None:
        """Start a process, which reports when it is ready."""
        ours, theirs = Channel.pair()
        command = [sys.executable, "-m", "dismec.serve.member", str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._receive(worker))
        paths = {"path": str(self._path), "directory": str(self._directory)}
        ours.send(paths | {"settings": self._settings})

    @property
    def _ready(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.ready]

    def _accept(self) -> None:
        """Accept connections while there is a process to answer them."""
        for _ in range(_AT_ONCE):
            if self._undelivered is not None or not self._ready:
                self._selector.unregister(self._listener)
                return
            try:
                self._undelivered, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it has been closed already, or there are too many open files
                time.sleep(_ROOM_SECONDS)
                return
            self._deliver()

    def _deliver(self) -> None:
        """Pass the waiting connection to the process with the fewest connections that has room."""
        assert self._undelivered is not None
        for worker in sorted(self._ready, key=lambda worker: worker.load):
            if worker.channel.send({"do": "take"}, self._undelivered):
                worker.given += 1
                self._undelivered.close()
                self._undelivered = None
                self._listen()
                return

    def _listen(self) -> None:
        """Resume accepting connections, if that had been paused."""
        if not self._begun or self._stopped_by:
            return
        if self._listener.fileno() not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _receive(self, worker: _Worker) -> None:
        try:
            while (received := worker.channel.receive()) is not None:
                self._handle(worker, received[0])
        except EOFError:
            self._replace(worker)

    def _handle(self, worker: _Worker, message: Message) -> None:
        if "closed" in message:
            worker.closed = message["closed"]
        elif "answer" in message:
            self._note_answer(worker, message)
        elif "ask" in message:
            self._note_question(worker, message)
        elif "ready" in message:
            worker.ready, worker.model = True, message["ready"]
            self._failures = 0
            self._compare()
            self._listen()
        elif not self._begun:
            raise DismecError(message["failed"])
        else:
            _log.error("a server process could not open the model: %s", message["failed"])

    def _replace(self, worker: _Worker) -> None:
        """Handle the end of a process: replace it, unless all are stopping."""
        self._selector.unregister(worker.channel)
        worker.channel.close()
        status = worker.process.wait()
        self._workers.remove(worker)
        if worker.counts is not None:
            self._counts.add(worker.counts, ended=True)
        for number, one in list(self._rounds.items()):
            one.waiting.discard(worker)
            if not one.waiting:
                self._close_round(number)
        if self._stopped_by:
            return
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        if not self._begun:
            raise DismecError(f"a server process {how} while opening the model")
        delay = 0.0
        if not worker.ready:
            least, most = _RETRY_SECONDS
            delay = min(most, least * 2**self._failures)
            self._failures += 1
        _log.error("server process %d %s; starting another", worker.process.pid, how)
        self._counts.restarts += 1
        self._restarts.append(time.monotonic() + delay)

    def _ask_all(
        self,
        order: Message,
        done: Callable[[dict[_Worker, Message]], None],
        seconds: float = math.inf,
    ) -> None:
        """Send an order to every process, and handle their answers when all have arrived."""
        number = next(self._numbers)
        asked = {w for w in self._ready if w.channel.send(order | {"round": number})}
        self._rounds[number] = _Round(asked, done, time.monotonic() + seconds)
        if not asked:
            self._close_round(number)

    def _note_answer(self, worker: _Worker, message: Message) -> None:
        one = self._rounds.get(message["answer"])
        if one is not None and worker in one.waiting:
            one.waiting.remove(worker)
            one.answers[worker] = message
            if not one.waiting:
                self._close_round(message["answer"])

    def _close_round(self, number: int) -> None:
        one = self._rounds.pop(number)
        one.done(one.answers)

    def _note_question(self, worker: _Worker, message: Message) -> None:
        asker = worker, message["number"]
        if message["ask"] == "reload":
            self._asking.append(asker)
            self._reload_wanted = True
        else:
            self._ask_all({"do": "count"}, lambda found: self._total(asker, found), _TOTAL_SECONDS)

    def _total(self, asker: tuple[_Worker, int], found: dict[_Worker, Message]) -> None:
        for worker, message in found.items():
            worker.counts = message["counts"]
        total = Metrics()
        total.processes = 0
        total.add(self._counts.to_dict())
        for worker in self._ready:
            if worker.counts is not None:
                total.add(worker.counts)
        self._reply(asker, counts=total.to_dict())

    def _reply(self, asker: tuple[_Worker, int], **answer: Any) -> None:
        worker, number = asker
        if worker in self._workers:
            worker.channel.send({"do": "hear", "number": number, **answer})

    def _reload(self) -> None:
        """Make every process open the model on disk."""
        self._reloading, self._asking = self._asking, []
        directory = self._path.resolve()
        self._ask_all(
            {"do": "open", "path": str(directory)}, lambda found: self._switch(directory, found)
        )

    def _switch(self, directory: Path, found: dict[_Worker, Message]) -> None:
        """Make every process use the model it has opened, if all could open the same one."""
        reasons = [message["failed"] for message in found.values() if "failed" in message]
        models = {json.dumps(m["model"]) for m in found.values() if "model" in m}
        if not found:
            reasons.append("no server process is ready")
        elif len(models) > 1:
            reasons.append("the model changed while it was being opened; reload again")
        if reasons:
            for worker in self._ready:
                worker.channel.send({"do": "forget"})
            log_not_reloaded(reasons[0])
            self._end_reload(False)
            return

        def switched(answers: dict[_Worker, Message]) -> None:
            self._directory = directory
            for worker in answers.keys() & found.keys():
                worker.model = found[worker]["model"]
            log_reloaded(self._path, next(iter(found.values()))["model"]["labels"])
            self._end_reload(True)
            self._compare()

        self._ask_all({"do": "switch"}, switched)

    def _end_reload(self, done: bool) -> None:
        waiting, self._reloading = self._reloading or [], None
        self._counts.reloads["ok" if done else "failed"] += 1
        for asker in waiting:
            self._reply(asker, done=done)

    def _compare(self) -> None:
        """Reload if processes have different models: the one on disk may have changed."""
        if self._reloading is None and len({json.dumps(w.model) for w in self._ready}) > 1:
            self._reload_wanted = True

    def _stop(self) -> None:
        """Stop all processes, each after it has finished its requests."""
        if self._listener.fileno() in self._selector.get_map():
            self._selector.unregister(self._listener)
        self._listener.close()
        self._restarts.clear()
        end = time.monotonic() + _STOP_SECONDS
        for worker in self._workers:
            if not worker.ready or not worker.channel.send({"do": "stop"}):
                worker.process.terminate()
        self._rounds[next(self._numbers)] = _Round(set(), lambda _: None, end)
        while self._workers and len(self._stopped_by) < 2 and time.monotonic() < end:
            self._turn()
