"""Dask schedulers and workers in separate processes, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest


class Processes:
    """A scheduler and its workers; leaving the ``with`` statement kills those still running."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "scheduler.json"
        self.running = []
        self._files = ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            self.kill(process)
        self._files.close()

    def scheduler(self, *options, port=0, host="127.0.0.1", env=None, prefix=()):
        self.file.unlink(missing_ok=True)
        process = self._start(
            "scheduler", f"--host={host}", f"--port={port}", "--no-dashboard",
            f"--scheduler-file={self.file}", *options, env=env, prefix=prefix,
        )  # fmt: skip
        wait_until(self.file.exists)
        return process

    def worker(
        self, *options, threads=1, host="127.0.0.1", nanny=False, env=None, prefix=(),
        local_directory=None,
    ):  # fmt: skip
        return self._start(
            "worker", f"--host={host}", f"--scheduler-file={self.file}", f"--nthreads={threads}",
            "--no-dashboard", "--nanny" if nanny else "--no-nanny",
            f"--local-directory={local_directory or self.folder}",
            *options, env=env, prefix=prefix,
        )  # fmt: skip

    def _start(self, what, *options, env=None, prefix=()):
        log = (self.folder / f"{what}-{len(self.running)}.log").open("wb")
        self._files.callback(log.close)
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", f"distributed.cli.dask_{what}", *options],
            stdout=log,
            stderr=log,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def kill(self, process):
        """Send SIGKILL to a process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(fact, timeout=180.0):
    end = time.monotonic() + timeout
    while not fact():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def with_version(folder, version):
    """Return the environment of a process with another version of dismec; "" for none."""
    if version:
        text = f"""
import importlib.metadata as metadata
real = metadata.version
def version(name):
    return "{version}" if name == "dismec" else real(name)
version.__module__ = "importlib.metadata"
metadata.version = version
"""
    else:
        text = """
import importlib.metadata as metadata, sys
sys.modules["dismec"] = None
real = metadata.version
def version(name):
    if name == "dismec":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
"""
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


class CountingProxy:
    """Forwards connections to an address and counts the bytes in both directions."""

    def __init__(self, target):
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = self.received = 0
        self._sockets = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Wakes `accept`. A connection that it returns just then is closed, too.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listening.join(10)
        for one in (self._listener, *self._sockets):
            one.close()

    def _listen(self):
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                self._sockets.append(near)
                far = socket.create_connection(self._target)
                self._sockets.append(far)
                for ends in ((near, far, "sent"), (far, near, "received")):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source, target, counter):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, counter, getattr(self, counter) + len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


class Machines:
    """Network namespaces with an address each, and a bridge; skips the test if not permitted."""

    def __init__(self, number):
        self._name = f"dm{os.getpid() % 100000}"
        self.gateway = "10.213.77.1"
        self.addresses = [f"10.213.77.{i + 2}" for i in range(number)]

    def inside(self, i):
        """Return the prefix of a command that is to run there."""
        return ["ip", "netns", "exec", f"{self._name}n{i}"]

    def __enter__(self):
        try:
            self._build()
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            pytest.skip(f"no network namespaces here: {error}")
        return self

    def __exit__(self, *_):
        for i in range(len(self.addresses)):
            self._ip(f"netns delete {self._name}n{i}", check=False)
        self._ip(f"link delete {self._name}", check=False)

    def _build(self):
        self._ip(f"link add {self._name} type bridge")
        self._ip(f"address add {self.gateway}/24 dev {self._name}")
        self._ip(f"link set {self._name} up")
        for i, address in enumerate(self.addresses):
            space, far, near = (f"{self._name}{kind}{i}" for kind in "nfv")
            self._ip(f"netns add {space}")
            self._ip(f"link add {near} type veth peer name {far}")
            self._ip(f"link set {near} master {self._name} up")
            self._ip(f"link set {far} netns {space}")
            self._ip(f"-n {space} address add {address}/24 dev {far}")
            self._ip(f"-n {space} link set {far} up")
            self._ip(f"-n {space} link set lo up")

    def _ip(self, command, check=True):
        subprocess.run(["ip", *command.split()], check=check, capture_output=True)
