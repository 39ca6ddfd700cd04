"""Which worker holds which shards: a plan based on sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

__all__ = ["Place", "plan"]

_MOST_COPIES = 2  # times the largest share of a worker: the limit for one that only holds copies


class Place(NamedTuple):
    """A worker: the shards that it holds or will hold, and the bytes it has room for."""

    held: AbstractSet[int]
    room: float


def plan(sizes: Sequence[int], places: Mapping[str, Place]) -> list[tuple[str, int]]:
    """Plan what to bring where, as pairs of a worker and a shard number.

    A shard that no worker holds goes to the worker that holds the least and has room, largest
    shards first. Workers that would then hold nothing, and have nothing to do, get copies of the
    shards with the most bytes per holder, because the holders of a shard can share its rows. Shards
    already held stay where they are. Shards that no worker has room for are left out. `sizes` are
    the bytes of each shard, `places` the workers by address.
    """
    held = {address: set(place.held) for address, place in places.items()}
    load = {address: sum(sizes[n] for n in numbers) for address, numbers in held.items()}
    holders = [sum(n in numbers for numbers in held.values()) for n in range(len(sizes))]
    brought: list[tuple[str, int]] = []

    def bring(address: str, number: int) -> None:
        held[address].add(number)
        load[address] += sizes[number]
        holders[number] += 1
        brought.append((address, number))

    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        if holders[number] == 0:
            fitting = [a for a in places if load[a] + sizes[number] <= places[a].room]
            if fitting:
                bring(min(fitting, key=lambda a: load[a]), number)

    most = _MOST_COPIES * max(load.values(), default=0)
    for address in [a for a, numbers in held.items() if not numbers]:
        limit = min(most, places[address].room)
        for number in sorted(range(len(sizes)), key=lambda n: -sizes[n] / max(holders[n], 1)):
            if holders[number] and load[address] + sizes[number] <= limit:
                bring(address, number)
    return brought
