"""The loop of a pool: which workers take part, how they are prepared, and what if they leave."""

from __future__ import annotations

import errno
import inspect
from concurrent.futures import Future
from unittest import mock

import pytest

from clusters import PretendCluster
from dismec.cluster.pool import Member, Pool, Work, check_workers
from dismec.cluster.task import Task
from dismec.errors import ClusterError, ModelError, WorkerLost


def prepare():
    """Stands for a task that prepares a worker."""


def work():
    """Stands for a task that is assigned to a worker."""


class Owner:
    """Prepares each worker with one task, then assigns one letter at a time; keeps the results."""

    def __init__(self, cluster, letters=""):
        self.cluster = cluster
        self.letters = list(letters)
        self.ready, self.lost, self.heard, self.steps = [], [], [], []
        self.pool = Pool(cluster, Work(Member, self.prepare, self.hand_out, self.lose))

    def prepare(self, member):
        self.steps.append(self.preparation(member))
        return self.steps[-1]

    def preparation(self, member):
        answer = yield self.cluster.submit(member.address, prepare)
        self.ready.append((member.address, answer))

    def hand_out(self):
        for address, _ in self.ready:
            member = self.pool.members.get(address)
            if member and not member.tasks and self.letters:
                task = self.cluster.submit(address, work)
                member.tasks[task] = self.letters.pop()

    def lose(self, member, why):
        self.lost.append((member.address, why, list(member.tasks.values())))

    def turn(self, **options):
        for member, letter, outcome in self.pool.turn(**options):
            self.heard.append((member.address, letter, outcome))


@pytest.fixture
def cluster():
    return PretendCluster()


def only(calls):
    (found,) = calls
    return found


def returning(value):
    return lambda *_: value


def raising(error):
    def raise_it(*_):
        raise error

    return raise_it


def prepared(cluster, letters="", workers="a"):
    owner = Owner(cluster, letters)
    for address in workers:
        cluster.join(address)
    owner.turn()
    for task in list(cluster.calls):
        cluster.finish(task, returning("prepared"))
    owner.turn()
    assert [address for address, _ in owner.ready] == list(workers)
    owner.turn()
    return owner


def test_a_worker_is_prepared_and_then_given_tasks(cluster):
    owner = prepared(cluster, "x")
    assert owner.ready == [("a", "prepared")]
    assert not owner.pool.preparing
    cluster.finish(only(cluster.calls), returning(7))
    owner.turn()
    assert owner.heard == [("a", "x", 7)]
    assert owner.pool.members["a"].tasks == {}


def test_an_exception_in_a_task_is_reported_and_its_worker_stays(cluster):
    owner = prepared(cluster, "x")
    error = OSError("disk full")
    cluster.finish(only(cluster.calls), raising(error))
    owner.turn()
    assert owner.heard == [("a", "x", error)]
    assert list(owner.pool.members) == ["a"]


def test_a_worker_of_another_version_is_left_out(cluster, caplog):
    owner = Owner(cluster)
    cluster.join("old", version="0.0.1")
    cluster.join("odd", version="")
    owner.turn()
    owner.turn()
    assert owner.pool.members == {}
    assert caplog.messages == [
        "worker old has dismec 0.0.1: it is not used",
        "worker odd has no dismec, or a very old one: it is not used",
    ]
    with pytest.raises(ClusterError, match=r"worker old has dismec 0\.0\.1, but the client has"):
        check_workers(cluster)


def test_steps_that_yield_none_are_resumed_and_task_errors_are_thrown_into_them(cluster):
    owner = Owner(cluster)
    seen = []

    def steps(member):
        seen.append((yield None))
        seen.append((yield None))
        try:
            yield cluster.submit(member.address, prepare)
        except OSError as error:
            seen.append(error)
        yield cluster.submit(member.address, prepare)

    owner.preparation = steps
    cluster.join("a")
    for _ in range(3):
        owner.turn()
    assert seen == [None, None]
    error = OSError("disk full")
    cluster.finish(only(cluster.calls), raising(error))
    owner.turn()
    assert seen == [None, None, error]
    cluster.finish(only(cluster.calls), returning(None))
    owner.turn()
    assert list(owner.pool.members) == ["a"]
    assert not owner.pool.preparing


@pytest.mark.parametrize("waits_for_task", [True, False])
def test_a_worker_that_leaves_while_it_is_prepared_leaves_nothing(cluster, waits_for_task):
    owner = Owner(cluster)
    cleared = []

    def steps(member):
        try:
            yield cluster.submit(member.address, prepare) if waits_for_task else None
        finally:
            cleared.append(member.address)

    owner.preparation = steps
    cluster.join("a")
    owner.turn()
    under_way = list(cluster.calls)
    assert len(under_way) == waits_for_task
    cluster.there.clear()
    owner.turn()
    assert inspect.getgeneratorstate(only(owner.steps)) == inspect.GEN_CLOSED
    assert cleared == ["a"]
    assert cluster.forgotten == under_way
    assert owner.lost == [("a", "is gone", [])]
    assert not owner.pool.preparing


def test_a_worker_that_comes_back_is_prepared_from_the_beginning(cluster):
    owner = prepared(cluster, "xy")
    stale = only(cluster.calls)
    info = cluster.there.pop("a")
    owner.turn()
    cluster.there["a"] = info
    owner.ready.clear()
    owner.turn()
    assert only(cluster.calls.values())[0] is prepare
    stale.future = Future()
    stale.future.set_result("too late")
    with mock.patch.object(cluster, "wait", returning([stale])):
        owner.turn()
    assert owner.heard == []


def test_tasks_of_a_worker_that_leaves_are_forgotten_and_given_back(cluster):
    owner = prepared(cluster, "xy", workers="ab")
    of_a = [task for task in cluster.calls if task.worker == "a"]
    del cluster.there["a"]
    owner.turn()
    assert cluster.forgotten == of_a
    assert owner.lost == [("a", "is gone", ["y"])]
    assert list(owner.pool.members) == ["b"]


def test_a_lost_task_removes_its_worker(cluster):
    owner = prepared(cluster, "x")
    cluster.finish(only(cluster.calls), raising(WorkerLost("restarted")))
    owner.turn()
    assert owner.lost == [("a", "is gone", ["x"])]
    assert owner.heard == []
    owner.ready.clear()
    owner.turn()  # the address still exists, with a new process behind it
    assert only(cluster.calls.values())[0] is prepare


def test_a_worker_that_cannot_be_prepared_is_refused_and_the_last_error_is_raised(cluster):
    owner = Owner(cluster)
    cluster.join("a")
    cluster.join("b")
    owner.turn()
    first, second = cluster.calls
    cluster.finish(first, raising(OSError("disk full")))
    owner.turn()
    assert owner.lost == [("a", "cannot take part: disk full", [])]
    owner.turn()
    assert list(owner.pool.members) == ["b"]
    cluster.finish(second, raising(OSError(errno.ENOSPC, "No space left on device", "/scratch/x")))
    message = "worker b cannot take part: /scratch/x: No space left on device"
    with pytest.raises(ClusterError, match=message):
        owner.turn()


def test_a_worker_that_is_refused_later_gives_its_tasks_back(cluster):
    owner = prepared(cluster, "xy", workers="ab")
    owner.pool.refuse(owner.pool.members["a"], ValueError("odd"))
    assert owner.lost == [("a", "cannot take part: odd", ["y"])]
    owner.turn()
    assert list(owner.pool.members) == ["b"]
    with pytest.raises(ValueError, match="odd"):
        owner.pool.refuse(owner.pool.members["b"], ValueError("odd"))


def test_an_error_about_the_model_is_raised_and_other_preparations_go_on(cluster):
    owner = Owner(cluster)
    for address in "abc":
        cluster.join(address)
    owner.turn()
    for task in list(cluster.calls):
        error = raising(ModelError("altered"))
        cluster.finish(task, error if task.worker == "b" else returning(1))
    with pytest.raises(ModelError, match="altered"):
        owner.turn()
    del cluster.there["b"]
    owner.turn()
    assert sorted(owner.ready) == [("a", 1), ("c", 1)]


def test_finished_tasks_are_reported_even_if_the_owner_fails_on_another(cluster):
    owner = prepared(cluster, "xy", workers="ab")
    for task in list(cluster.calls):
        cluster.finish(task, returning(1))
    turn = owner.pool.turn()
    next(turn)
    turn.close()  # as the owner's exception does
    owner.turn()
    assert len(owner.heard) == 1


def test_a_bell_is_among_the_tasks_waited_for(cluster):
    owner = prepared(cluster, "x")
    bell = Task("", None, Future())
    bell.future.set_result(None)
    owner.turn(wake=bell)
    assert cluster.waited_for == [*cluster.calls, bell]
    assert owner.heard == []


def test_dropped_tasks_are_not_reported(cluster):
    owner = prepared(cluster, "x")
    owner.pool.drop()
    assert len(cluster.forgotten) == 1
    owner.turn()
    assert owner.heard == owner.lost == []


def test_closing_asks_every_accepted_worker_and_forgets_silent_ones(cluster):
    owner = prepared(cluster, "x", workers="ab")
    cluster.join("old", version="0.0.1")
    owner.turn()
    asked = []
    cluster.answers[print] = asked.append
    with mock.patch("dismec.cluster.pool._CLOSE_SECONDS", 0.5):
        owner.pool.close((print, 1), (work,))
    assert owner.pool.members == {}
    assert owner.lost == []
    assert asked == [1, 1]
    assert [task.worker for task in cluster.forgotten[:1]] == ["a"]  # what it was handed
    assert sorted(task.worker for task in cluster.forgotten[1:]) == ["a", "b"]
    assert cluster.calls == {}
