"""Orders and label sets already sent to a worker → what to include with the next question."""

from __future__ import annotations

from collections import OrderedDict

from dismec.cluster.batches import RowBatch
from dismec.cluster.prediction_worker import KEPT, Asked
from dismec.cluster.questions import Rescaling
from dismec.cluster.ranking import Layout

__all__ = ["SentOrders"]

_MOST_BYTES = 8_000_000  # curves per message; Dask warns above 10 MB


class SentOrders:
    """The orders and sets of labels that a worker has been sent, as far as the client knows."""

    def __init__(self) -> None:
        self._orders: OrderedDict[str, set[int]] = OrderedDict()  # shards, by order key
        self._choices: OrderedDict[str, None] = OrderedDict()

    def forget(self) -> None:
        """Send everything again."""
        self._orders.clear()
        self._choices.clear()

    def ask(self, batch: RowBatch, numbers: tuple[int, ...], layout: Layout) -> Asked:
        """Return the question of a batch to some or all of these shards of a worker.

        It includes what the worker needs and has not been sent. If that is large, the question is
        limited to as many shards as fit in a message.
        """
        asked = Asked(batch.ask.question, numbers)
        curves, choice = batch.ask.curves, batch.ask.choice
        if curves is not None:
            known = self._orders.pop(curves.key, set())
            sent: dict[int, Rescaling] = {}
            size = 0
            for number in numbers:
                if number in known:
                    continue
                rescaling = curves.of(layout.shards[number].leaders)
                size += rescaling.slopes.nbytes + rescaling.offsets.nbytes
                if sent and size > _MOST_BYTES:
                    break
                sent[number] = rescaling
            known.update(sent)
            self._orders[curves.key] = known
            some = tuple(number for number in numbers if number in known)
            asked = asked._replace(numbers=some, order=curves.key, rescalings=sent)
        if choice is not None:
            bits = None if choice.key in self._choices else choice.bits
            self._choices.pop(choice.key, None)
            self._choices[choice.key] = None
            asked = asked._replace(choice=choice.key, bits=bits)
        for kept in (self._orders, self._choices):
            while len(kept) > KEPT:
                kept.popitem(last=False)
        return asked
