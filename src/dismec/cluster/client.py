"""An address, a scheduler file or a caller's client → a connection. The only access to Dask."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dismec.errors import ClusterError, located

try:
    import distributed
except ImportError:
    raise ClusterError(
        "clusters need the package distributed: pip install 'dismec[dask]'"
    ) from None

_CONNECT_SECONDS = 10.0  # for one attempt to connect
_LOOK_SECONDS = 1.0  # between checks for workers
_POLL_SECONDS = 0.02

_log = logging.getLogger("dismec")


class SchedulerLost(ClusterError):  # noqa: N818  named after the event
    """The connection to the scheduler has ended, and with it all tasks."""


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to a cluster; use it in a ``with`` statement, from one thread."""

    def __init__(self, client: distributed.Client, where: str | None, patience: float) -> None:
        self.client = client
        self.patience = patience
        self._where = where  # to reconnect; None for a client that is not ours
        self._workers: dict[str, int] = {}
        self._looked = 0.0
        self._last_seen = time.monotonic()

    @classmethod
    def connect(
        cls, where: str | os.PathLike[str] | distributed.Client | Cluster, *, patience: float = 60.0
    ) -> Cluster:
        """Connect to a scheduler: its address, such as ``tcp://host:8786``, or its file.

        A client stays open at the end, and a cluster is returned unchanged. `patience` is how many
        seconds to wait for a scheduler or a worker if there is none, now and later.
        """
        if isinstance(where, Cluster):
            return where
        if isinstance(where, distributed.Client):
            if where.asynchronous:
                raise ClusterError(
                    "this would block the event loop of the client: call the function in a "
                    "thread, as in await asyncio.to_thread(train, ...)"
                )
            return cls(where, None, patience)
        return cls(_new_client(os.fspath(where), patience), os.fspath(where), patience)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, unless the client is the caller's."""
        if self._where is not None:
            self.client.close()

    def reconnect(self) -> None:
        """Wait for a scheduler that is gone; raise `ClusterError` after `patience` seconds."""
        _log.warning("the scheduler does not answer; waiting for it")
        begin = time.monotonic()
        if self._where is not None:
            self.client.close(timeout=1)
            self.client = _new_client(self._where, self.patience)
        while self.client.status != "running":  # Dask reconnects a caller's client
            waited = time.monotonic() - begin
            if waited > self.patience or self.client.status == "closed":
                raise _no_scheduler("the client's scheduler", waited)
            time.sleep(0.2)
        self._looked, self._last_seen = 0.0, time.monotonic()
        _log.warning("the scheduler answers again")

    def workers(self) -> dict[str, int]:
        """Return the threads of all workers by address, as of a second ago or less.

        Raise `ClusterError` if there has been no worker for `patience` seconds, and `SchedulerLost`
        if the scheduler is gone.
        """
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            try:
                if self.client.status != "running":
                    raise OSError("not connected")
                self._workers = dict(self.client.nthreads())
            except (OSError, RuntimeError, ValueError, AttributeError):  # from a closed client
                raise SchedulerLost("the scheduler is gone; run the same command again") from None
            if self._workers:
                self._last_seen = now
        if now - self._last_seen > self.patience:
            raise ClusterError(
                f"there has been no worker for {now - self._last_seen:.0f} s; run the same command "
                "again when there is one"
            )
        return self._workers

    def check_workers(self) -> None:
        """Wait for a worker; raise `ClusterError` if there is none, or one of another version."""
        try:
            self.client.wait_for_workers(1, timeout=self.patience)
        except TimeoutError:
            raise ClusterError(
                f"no worker has joined the cluster for {self.patience:.0f} s"
            ) from None
        for worker, software in self.other_versions().items():
            raise ClusterError(
                f"worker {worker} has {software}, but the client has dismec {own_version()}: "
                "install the same version on both"
            )

    def other_versions(self) -> dict[str, str]:
        """Return the workers of another version than this process, and which software they have."""
        found = self.client.run(own_version, on_error="return")
        return {
            worker: f"dismec {there}" if isinstance(there, str) else "no dismec, or a very old one"
            for worker, there in found.items()
            if there != own_version()
        }


class Tasks:
    """Tasks whose results are wanted in the order in which they finish."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._futures = distributed.as_completed(
            loop=cluster.client.loop, with_results=True, raise_errors=False
        )

    def add(self, *futures: distributed.Future) -> None:
        """Add submitted tasks."""
        self._futures.update(futures)

    def finished(self, timeout: float = 1.0) -> list[tuple[distributed.Future, Any]]:
        """Return finished tasks, each with its result or its exception; none after the timeout.

        Raise `SchedulerLost` if the scheduler is gone, and the errors of `Cluster.workers`.
        """
        end = time.monotonic() + timeout
        while not self._futures.has_ready() and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self._cluster.workers()
        return [(f, self._outcome(f, r)) for f, r in self._futures.next_batch(block=False)]

    def _outcome(self, future: distributed.Future, result: Any) -> Any:
        if isinstance(result, CancelledError | asyncio.CancelledError):
            return SchedulerLost("the scheduler is gone; run the same command again")
        if future.status != "error":
            return result
        error = result[1]
        if isinstance(error, distributed.KilledWorker):
            return ClusterError(
                "several workers have died while running the same task, perhaps out of memory: "
                "give them more memory or fewer threads"
            )
        if "deserialization of the task graph" in str(error):
            return ClusterError(
                "the scheduler cannot import dismec: install the same version as on this machine"
            )
        return error


def own_version() -> str:
    """Return the version of dismec of this process."""
    return version("dismec")


def this_worker() -> str:
    """Return the address of the worker that runs the calling task."""
    return str(distributed.get_worker().address)


def scratch_directory(worker: Any = None) -> Path:
    """Return a directory for temporary files shared by the workers of a machine.

    A function that is called outside of tasks (`Client.run`) must pass its worker.
    """
    return Path((worker or distributed.get_worker()).local_directory).parent


def worker_client() -> distributed.Client:
    """Return a client for the calling task."""
    return distributed.get_client()


def _new_client(where: str, patience: float) -> distributed.Client:
    """Connect to a scheduler at an address or in a scheduler file; wait until it answers."""
    begin = time.monotonic()
    warned = False
    while True:
        try:
            left = patience - (time.monotonic() - begin)
            address = _address(where)
            if address.startswith("tls://") and distributed.Security().tls_ca_file is None:
                raise ClusterError(f"{where}: TLS is not configured (distributed.comm.tls of Dask)")
            return distributed.Client(
                address,
                timeout=max(min(left, _CONNECT_SECONDS), 1.0),
                set_as_default=False,
                asynchronous=False,
            )
        except OSError:
            waited = time.monotonic() - begin
            if waited >= patience:
                raise _no_scheduler(where, waited) from None
            if not warned:
                there = "" if "://" in where or Path(where).exists() else " (there is no such file)"
                _log.warning("%s: no scheduler yet%s; waiting %.0f s", where, there, patience)
                warned = True
            time.sleep(0.2)


def _address(where: str) -> str:
    """Return the address itself, or the one in a scheduler file."""
    if Path(where).is_dir() or (where.endswith(".json") and not Path(where).parent.is_dir()):
        raise ClusterError(f"{where}: not the path of a scheduler file")
    if "://" in where or not (where.endswith(".json") or Path(where).exists()):
        with located(where, ClusterError, ValueError):
            distributed.comm.get_address_host_port(where)
        return where
    try:
        content = json.loads(Path(where).read_bytes())
    except json.JSONDecodeError:
        raise OSError("not complete yet") from None
    if not (isinstance(content, dict) and isinstance(content.get("address"), str)):
        raise ClusterError(f"{where}: not a scheduler file of Dask")
    return str(content["address"])


def _no_scheduler(where: str, seconds: float) -> ClusterError:
    """Return the error for a scheduler that has not answered for `seconds`."""
    return ClusterError(
        f"{where}: no scheduler has answered for {seconds:.0f} s; run the same command again when "
        "one does: training resumes where it stopped"
    )
