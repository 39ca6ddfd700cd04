"""An address, a scheduler file or a caller's client → a client. The only access to Dask."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from dismec.errors import ClusterError

try:
    import distributed
except ImportError:
    raise ClusterError(
        "clusters need the package distributed: pip install 'dismec[dask]'"
    ) from None

__all__ = ["ANSWER_SECONDS", "distributed", "new_client", "no_scheduler", "scheduler_of"]

ANSWER_SECONDS = 10.0  # to wait for an answer of the scheduler

_log = logging.getLogger("dismec")


def new_client(where: str, patience: float, security: Any = None) -> distributed.Client:
    """Connect to a scheduler, given its address or a scheduler file; wait until it answers.

    The client runs in its own thread. Raise `ClusterError` if no scheduler answers for `patience`
    seconds.
    """
    begin = time.monotonic()
    warned = False
    while True:
        try:
            left = patience - (time.monotonic() - begin)
            address = _address(where)
            keys = security or distributed.Security()
            if address.startswith("tls://") and keys.tls_ca_file is None:
                raise ClusterError(f"{where}: TLS is not configured (distributed.comm.tls of Dask)")
            return distributed.Client(
                address,
                timeout=max(min(left, ANSWER_SECONDS), 1.0),
                set_as_default=False,
                security=security,
                asynchronous=False,
            )
        except OSError:
            waited = time.monotonic() - begin
            if waited >= patience:
                raise no_scheduler(where, waited) from None
            if not warned:
                there = "" if "://" in where or Path(where).exists() else " (there is no such file)"
                _log.warning("%s: no scheduler yet%s; waiting %.0f s", where, there, patience)
                warned = True
            time.sleep(0.2)


def scheduler_of(client: distributed.Client) -> str:
    """Return the scheduler address of an asynchronous client, for a second connection.

    The caller is a coroutine in the event loop of the client, and blocks this loop while it waits.
    The client itself is therefore of no use, and a scheduler that runs in the same loop cannot
    answer either: this raises `ClusterError`, and so does a client that is not connected.
    """
    scheduler = getattr(client.cluster, "scheduler", None)
    if isinstance(scheduler, distributed.Scheduler) and (
        scheduler.loop.asyncio_loop is client.loop.asyncio_loop
    ):
        raise ClusterError(
            "the scheduler runs in the event loop of this coroutine, which would block it: "
            "call the function in a thread, as in await asyncio.to_thread(train, ...)"
        )
    if client.scheduler is None or client.status != "running":
        raise ClusterError("the client is not connected: await it first, or use async with")
    return str(client.scheduler.address)


def _address(where: str) -> str:
    """Return the address itself, or the one in a scheduler file."""
    if Path(where).is_dir() or (where.endswith(".json") and not Path(where).parent.is_dir()):
        raise ClusterError(f"{where}: not the path of a scheduler file")
    if "://" in where or not (where.endswith(".json") or Path(where).exists()):
        try:
            distributed.comm.get_address_host_port(where)
        except ValueError as error:
            raise ClusterError(f"{where}: {error}") from None
        return where
    try:
        content = json.loads(Path(where).read_bytes())
    except json.JSONDecodeError:
        raise OSError("not complete yet") from None
    if not (isinstance(content, dict) and isinstance(content.get("address"), str)):
        raise ClusterError(f"{where}: not a scheduler file of Dask")
    return str(content["address"])


def no_scheduler(where: str, seconds: float) -> ClusterError:
    """Return the error for a scheduler that has not answered for `seconds`."""
    return ClusterError(
        f"{where}: no scheduler has answered for {seconds:.0f} s; run the same command again when "
        "one does: training resumes where it stopped"
    )
