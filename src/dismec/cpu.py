"""CPUs and memory of this machine, and the extension module built for its kind of CPU."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dismec import _native_base
from dismec.errors import DataError, DismecError

if TYPE_CHECKING:
    kernels = _native_base

__all__ = [
    "available_cpus",
    "cpu_name",
    "in_threads",
    "kernels",
    "mapping",
    "physical_memory",
    "thread_count",
]

T = TypeVar("T")
R = TypeVar("R")


def _module(wanted: str | None) -> object:
    """Import the best module that the CPU runs, or the one that ``DISMEC_ISA`` names."""
    available = _native_base.cpu_isas()
    if wanted and wanted not in available:
        raise DismecError(
            f"DISMEC_ISA={wanted}: this CPU runs {', '.join(available)}; "
            "name one of them or unset it"
        )
    return importlib.import_module(f"dismec._native_{wanted or available[0]}")


if not TYPE_CHECKING:
    kernels = _module(os.environ.get("DISMEC_ISA"))


def thread_count(threads: int | None) -> int:
    """How many threads a caller means: as many as there are CPUs for None."""
    if threads is None:
        return available_cpus()
    if threads < 1:
        raise DataError(f"threads is {threads}; expected at least 1")
    return threads


def in_threads(
    work: Callable[[T], R],
    items: Iterable[T],
    threads: int,
    stop: Callable[[], None] = lambda: None,
) -> list[R]:
    """What `work` makes of each item, in their order.

    After an error, and when the user interrupts, no more items are begun, and `stop` may end those
    that are under way.
    """
    with mapping(threads) as run:
        try:
            return list(run(work, items))
        except BaseException:
            stop()
            raise


@contextmanager
def mapping(threads: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map`, on threads if there are to be several; after an error no more items are begun."""
    if threads <= 1:
        yield map
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="dismec") as pool:
        yield pool.map


def available_cpus() -> int:
    """Number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """What this machine's CPU is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def physical_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process may use, if the machine says.

    That of the machine, or the least limit of the control groups that the process is in: a
    container or a batch job may have been given less. `root` is where ``proc`` and ``sys`` are.
    """
    if sys.platform == "win32":
        return _windows_memory()[0]
    limits = [limit for _, limit in _group_limits(root)]
    limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits)


def _group_limits(root: Path) -> Iterator[tuple[Path, int]]:
    """The control groups of this process and those above them, each with its memory limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # "0::/path" in version 2, "4:memory:/path" in version 1.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        # In a container the path may be that on the host, and the top is the container's own.
        for folder in (group, *group.parents):
            try:
                limit = (folder / file).read_text().strip()
            except (OSError, ValueError):
                limit = ""
            if limit.isdecimal():  # else "max", or no such file
                yield folder, int(limit)
            if folder == top:
                break


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory that can be taken without swapping, or all there is, if the system says.

    In a control group with a limit it is what the group has left; `root` as for `physical_memory`.
    """
    if sys.platform == "win32":
        return _windows_memory()[1]
    free = _first_numbers(root / "proc/meminfo").get("MemAvailable:")
    found = [limit - _group_use(folder) for folder, limit in _group_limits(root)]
    found += [] if free is None else [free << 10]
    return max(0, min(found)) if found else physical_memory(root)


def _group_use(folder: Path) -> int:
    """Bytes that a control group uses, without pages of files, which the system can drop."""
    stat = _first_numbers(folder / "memory.stat")
    if "anon" in stat:  # version 2
        return stat["anon"] + stat.get("shmem", 0) + stat.get("kernel", 0)
    return stat.get("total_rss", 0) + stat.get("total_shmem", 0)


def _first_numbers(path: Path) -> dict[str, int]:
    """The first number of each line of a file by the word before it; none if it is not there."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


if sys.platform == "win32":

    def _windows_memory() -> tuple[int, int]:
        """Bytes of memory that the machine has, and that are free."""
        import ctypes
        import struct

        # MEMORYSTATUSEX: its own size, a percentage, and seven counts of bytes.
        status = bytearray(struct.pack("=II7Q", 64, *[0] * 8))
        ctypes.windll.kernel32.GlobalMemoryStatusEx((ctypes.c_char * 64).from_buffer(status))
        _, _, total, free, *_ = struct.unpack("=II7Q", status)
        return total, free
