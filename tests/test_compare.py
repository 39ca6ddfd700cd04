"""`dismec compare`: systems in separate processes, their kept results, and the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import dismec
from conftest import write_texts
from dismec.cli import main
from dismec.compare import comparison, process
from dismec.compare.comparison import (
    Comparison,
    Pair,
    aligned,
    check_systems,
    pair_of_texts,
    write_rows,
)
from dismec.compare.process import run_system
from dismec.data.corpus import Texts
from dismec.data.dataset import save_data
from dismec.errors import DataError, ModelError
from dismec.measure import metrics
from dismec.measure.metrics import evaluate, shares_of_rows
from dismec.model.directory import locked


@pytest.fixture(scope="module")
def pair():
    return Pair(*dismec.generate(600, 300, 40, test_rows=200))


@pytest.fixture(scope="module")
def files(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    for name, part in (("train", pair.train), ("test", pair.test)):
        save_data(part, folder / f"{name}.txt")
    return folder / "train.txt", folder / "test.txt"


@pytest.fixture
def texts(tmp_path):
    write_texts(tmp_path / "texts.jsonl")
    return tmp_path / "texts.jsonl"


@pytest.fixture
def rows(pair, tmp_path):
    write_rows(tmp_path, aligned(pair))
    return tmp_path


def compared(*arguments):
    """Return the exit code and the output."""
    result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def fake_system(tmp_path, monkeypatch, body):
    """Replace the worker by a script that gets the same arguments; `send` sends a report."""
    script = tmp_path / "system.py"
    script.write_text(
        "import json, os, sys, time\n"
        "reports = os.dup(1)\n"
        "os.dup2(2, 1)\n"
        "def send(report):\n"
        "    os.write(reports, (json.dumps(report) + '\\n').encode())\n" + body
    )
    monkeypatch.setattr(process.worker, "__file__", str(script))


# A system that always predicts the same labels.
QUICK = (
    "import numpy as np\n"
    "n = int(np.load(sys.argv[1] + '/test_X.npz')['shape'][0])\n"
    "send(dict(train=1.0, cpu=1.0, save=0.0, peak=1, size=1, note='', version='',\n"
    "  predict=1.0, single=1.0, rankings={}, top=[[0, 1, 2, 3, 4]] * n))\n"
)


def has_ended(pid, seconds=10):
    """Whether a process is gone, or ends within some seconds."""
    state = Path(f"/proc/{pid}/stat")
    for _ in range(10 * seconds):
        try:
            if state.read_text().split()[2] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


class TestIntervals:
    def test_shares_of_rows_add_up_to_the_metrics(self, pair):
        test = aligned(pair).test
        p = np.linspace(0.2, 0.9, test.Y.shape[1])
        top = np.argsort(np.random.default_rng(0).random((200, test.Y.shape[1])))[:, :5]
        expected = evaluate(test.Y, top, (1, 3, 5), p)
        for name, (one, other) in shares_of_rows(test.Y, top, p).items():
            assert 100 * one.sum() / other.sum() == pytest.approx(expected[name])

    def test_the_interval_of_a_mean_follows_from_its_standard_error(self):
        rng = np.random.default_rng(1)
        Y = sp.csr_array(rng.random((4000, 2)) < [0.3, 0.5])
        drawn = metrics.drawn(Y, np.zeros((4000, 1), int), np.ones(2), (1,))
        low, high = metrics.interval(drawn["P@1"])
        share = Y.toarray()[:, 0].mean()
        error = 100 * 1.96 * np.sqrt(share * (1 - share) / 4000)
        assert (high - low) / 2 == pytest.approx(error, rel=0.15)
        assert (high + low) / 2 == pytest.approx(100 * share, abs=0.3)

    def test_two_systems_see_the_same_draws(self, pair):
        test = aligned(pair).test
        top = np.tile(np.arange(5), (200, 1))
        one, other = (metrics.drawn(test.Y, t, np.ones(test.Y.shape[1])) for t in (top, top.copy()))
        assert not (one["P@5"] - other["P@5"]).any()
        assert np.ptp(one["P@5"]) > 0

    def test_rows_drawn_in_parts_are_the_same(self, pair, monkeypatch):
        test = aligned(pair).test
        args = test.Y, np.tile(np.arange(5), (200, 1)), np.ones(test.Y.shape[1])
        whole = metrics.drawn(*args, draws=20)
        monkeypatch.setattr(metrics, "_AT_A_TIME", 3 * 200)
        parts = metrics.drawn(*args, draws=20)
        assert all((whole[name] == parts[name]).all() for name in whole)


class TestProcess:
    def test_dismec_reports_what_it_predicts_here(self, pair, rows, tmp_path):
        report = run_system("dismec", rows, threads=1)
        train, test, *_ = aligned(pair)
        model = dismec.train(train.X, train.Y, tmp_path / "model")
        assert report["top"] == model.predict_topk(test.X, 5)[0].tolist()
        size = sum(p.stat().st_size for p in (tmp_path / "model").rglob("*"))
        assert report["size"] == pytest.approx(size, abs=50)  # the manifest contains a time
        assert 0 < report["train"] < 60
        assert 0 < report["predict"] <= report["single"]
        assert 20e6 < report["peak"] < 2e9
        assert report["version"].startswith("dismec ")

    def test_a_missing_package_is_named(self, rows):
        assert run_system("xr-linear", rows, threads=1) == {
            "error": "not installed: pip install libpecos"
        }

    def test_a_system_that_takes_too_long_is_ended_with_its_children(
        self, rows, tmp_path, monkeypatch
    ):
        fake_system(
            tmp_path,
            monkeypatch,
            "import subprocess\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
            "time.sleep(60)\n",
        )
        begin = time.monotonic()
        assert run_system("plt", rows, threads=1, limit=2) == {"error": "did not finish within 2 s"}
        assert time.monotonic() - begin < 20
        assert has_ended(int((tmp_path / "pid").read_text()))

    def test_a_system_that_takes_too_much_memory_is_ended(self, rows, tmp_path, monkeypatch):
        fake_system(tmp_path, monkeypatch, "x = bytearray(400_000_000); time.sleep(60)\n")
        assert run_system("plt", rows, threads=1, memory=200_000_000) == {
            "error": "used more than 0.2 GB of memory"
        }

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            ("os.kill(os.getpid(), 9)", "killed, probably out of memory"),
            ("os.abort()", "ended by signal 6"),
            ("print('some'); sys.exit('no such thing')", "ended with code 1: no such thing"),
            ("os.write(reports, b'{\"tr')", "ended with code 0"),
        ],
    )
    def test_the_exit_of_a_system_is_explained(self, rows, tmp_path, monkeypatch, body, why):
        fake_system(tmp_path, monkeypatch, body + "\n")
        assert run_system("plt", rows, threads=1) == {"error": why}

    def test_a_system_ends_with_its_parent(self, tmp_path):
        """A comparison that is killed during a training leaves no process behind."""
        write_rows(tmp_path, Pair(*dismec.generate(20_000, 20_000, 3000, test_rows=10)))
        code = (
            "from pathlib import Path\nfrom dismec.compare.process import run_system\n"
            f"run_system('dismec-l1', Path({str(tmp_path)!r}), threads=1)\n"
        )
        with subprocess.Popen([sys.executable, "-c", code]) as parent:
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
            while not children.read_text():
                time.sleep(0.1)
            time.sleep(2)
            [child] = map(int, children.read_text().split())
            parent.kill()
        assert has_ended(child)

    def test_an_error_in_a_system_is_one_line(self, rows):
        (rows / "train_X.npz").write_bytes(b"not rows")
        assert run_system("dismec", rows, threads=1)["error"].startswith("failed: ")

    def test_the_worker_needs_no_dismec(self, rows):
        """The environment of the peers has no dismec: only numpy and scipy are imported."""
        code = (
            "import sys, runpy; sys.modules['dismec'] = None\n"
            f"runpy.run_path({process.worker.__file__!r}, run_name='worker')\n"
            "print(sorted(m for m in sys.modules if m.startswith('dismec')))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "['dismec']", done.stderr


class TestComparison:
    def test_a_comparison_has_everything_documented(self, files, tmp_path):
        target = tmp_path / "page.html"
        code, out, err = compared(
            files[0], "--test", files[1], "--systems", "leml,dismec,xr-linear",
            "-o", tmp_path / "kept", "--html", target, "--json",
        )  # fmt: skip
        assert code == 0, err
        found = json.loads(out)
        assert list(found["systems"]) == ["dismec", "leml", "xr-linear"]
        assert found["systems"]["xr-linear"] == {"error": "not installed: pip install libpecos"}
        for entry in (found["systems"]["dismec"], found["systems"]["leml"]):
            for name in ("P@1", "P@3", "P@5", "nDCG@1", "nDCG@5", "PSP@1", "PSP@3", "PSP@5"):
                low, high = entry["intervals"][name]
                assert low <= entry[name] <= high
            for name in ("train_seconds", "cpu_seconds", "predict_ms", "single_ms"):
                assert entry[name] > 0
            assert entry["peak_bytes"] > 1e7
            assert entry["model_bytes"] > 1000
        low, high = found["systems"]["leml"]["minus_dismec"]["P@5"]
        apart = found["systems"]["leml"]["P@5"] - found["systems"]["dismec"]["P@5"]
        assert low <= apart <= high
        page = target.read_text()
        assert page.count("<img") == 5
        assert "not installed: pip install libpecos" in page
        assert "Content-Security-Policy" in page

    def test_a_second_run_continues(self, files, tmp_path):
        args = files[0], "--test", files[1], "-o", tmp_path / "kept", "--json"
        code, out, err = compared(*args, "--systems", "dismec")
        assert code == 0
        assert "dismec: trained in" in err
        first = json.loads(out)["systems"]["dismec"]
        code, out, err = compared(*args, "--systems", "dismec,leml")
        assert "dismec: trained" not in err
        assert "leml: trained" in err
        assert json.loads(out)["systems"]["dismec"] == first

    def test_other_data_starts_a_new_comparison(self, pair, tmp_path, monkeypatch):
        fake_system(tmp_path, monkeypatch, QUICK)
        other = Pair(pair.train, pair.test._replace(X=pair.test.X[:100], Y=pair.test.Y[:100]))
        kept = Comparison(tmp_path / "kept")
        for data in (pair, other):
            news = []
            kept.run(data, ["plt"], news.append)
            assert news == ["plt: trained in 1.0 s"]

    def test_a_truncated_report_is_measured_again(self, pair, tmp_path, monkeypatch):
        fake_system(tmp_path, monkeypatch, QUICK)
        kept = Comparison(tmp_path / "kept")
        kept.run(pair, ["plt"])
        [report] = tmp_path.rglob("plt-0.json")
        report.write_text(report.read_text()[:50])
        news = []
        found = kept.run(pair, ["plt"], news.append)
        assert news == ["plt: trained in 1.0 s"]
        assert found["systems"]["plt"]["P@1"] > 0

    @pytest.mark.slow
    def test_results_of_other_code_are_measured_again(self, pair, tmp_path, monkeypatch):
        kept = Comparison(tmp_path)
        kept.run(pair, ["dismec"])
        news = []
        kept.run(pair, ["dismec"], news.append)
        assert re.fullmatch(r"dismec: reusing the result of \d{4}-\d\d-\d\d \d\d:\d\d", news[0])
        monkeypatch.setattr(comparison, "_code_digest", lambda: "other")
        kept.run(pair, ["dismec"], news.append)
        assert news[1].startswith("dismec: trained in")

    def test_two_runs_do_not_share_a_folder(self, pair, tmp_path, monkeypatch):
        fake_system(tmp_path, monkeypatch, QUICK)
        kept = Comparison(tmp_path / "kept")
        kept.run(pair, ["plt"])
        [store] = (tmp_path / "kept").iterdir()
        (store / "rows-left").mkdir()
        with locked(store), pytest.raises(ModelError, match="another process is writing to it"):
            kept.run(pair, ["plt"])
        kept.run(pair, ["plt"])
        assert not (store / "rows-left").exists()

    @pytest.mark.parametrize(
        ("top", "why"),
        [
            (
                "[[1, 1, 2, 3, 4]] * 200",
                "invalid predictions: row index 0: label 1 is",
            ),
            ("[[1, 2, 3, 4, 5]] * 199", "predictions do not match the test rows"),
            ("[[1, 2]] * 200", "predictions do not match the test rows"),
        ],
    )
    def test_invalid_predictions_are_an_error_of_their_system(
        self, pair, tmp_path, monkeypatch, top, why
    ):
        body = QUICK.replace("[[0, 1, 2, 3, 4]] * n", "top if sys.argv[2] == 'plt' else right")
        right = "right = [[0, 1, 2, 3, 4]] * 200\n"
        fake_system(tmp_path, monkeypatch, f"{right}top = {top}\n{body}")
        found = Comparison(tmp_path / "kept").run(pair, ["plt", "bonsai"])
        assert found["systems"]["plt"]["error"].startswith(why)
        assert found["systems"]["bonsai"]["P@1"] > 0

    def test_a_failure_is_not_kept(self, pair, tmp_path, monkeypatch):
        kept = Comparison(tmp_path / "kept")
        for why in ("out of luck", "out of luck again"):
            fake_system(tmp_path, monkeypatch, f"sys.exit({why!r})\n")
            found = kept.run(pair, ["plt"])
            assert found["systems"] == {"plt": {"error": f"ended with code 1: {why}"}}

    def test_seeds_take_turns_and_metrics_are_means(self, pair, tmp_path, monkeypatch):
        fake_system(
            tmp_path,
            monkeypatch,
            f"open({str(tmp_path / 'log')!r}, 'a').write(sys.argv[2] + sys.argv[4] + ' ')\n"
            "seed = int(sys.argv[4])\n"
            "send(dict(train=2.0 - seed, cpu=1.0, save=0.0, peak=1, size=1, note='', version='',\n"
            "  predict=1.0, single=1.0, rankings={}, top=[[seed, 2, 3, 4, 5]] * 200))\n",
        )
        found = Comparison(tmp_path / "kept", seeds=2).run(pair, ["plt", "bonsai"])
        assert (tmp_path / "log").read_text() == "plt0 bonsai0 plt1 bonsai1 "
        entry = found["systems"]["plt"]
        assert entry["train_seconds"] == 1.0
        Y = aligned(pair).test.Y.toarray()
        assert entry["P@1"] == pytest.approx(50 * (Y[:, 0].mean() + Y[:, 1].mean()))
        assert entry["seed_deviation"]["P@1"] > 0

    def test_unknown_labels_count_as_misses(self, pair, tmp_path, monkeypatch):
        fake_system(
            tmp_path,
            monkeypatch,
            "send(dict(train=1.0, cpu=1.0, save=0.0, peak=1, size=1, note='', version='',\n"
            "  predict=1.0, single=1.0, rankings={}, top=[[10**6, -5, -1, -1, -1]] * 200))\n",
        )
        found = Comparison(tmp_path / "kept").run(pair, ["plt"])
        assert found["systems"]["plt"]["P@1"] == 0

    @pytest.mark.slow
    def test_texts_are_compared(self, texts, tmp_path):
        code, out, err = compared(
            texts, "--test", texts, "--systems", "dismec,sklearn,fasttext",
            "-o", tmp_path / "kept", "--json",
        )  # fmt: skip
        assert code == 0, err
        found = json.loads(out)["systems"]
        assert found["dismec"]["P@1"] > 50
        assert abs(found["dismec"]["P@1"] - found["sklearn"]["P@1"]) < 8
        assert set(found["fasttext"]) == {"error"} or found["fasttext"]["P@1"] >= 0

    def test_a_comparison_prints_a_readable_table(self, files, tmp_path):
        code, out, _ = compared(
            files[0], "--test", files[1], "--systems", "dismec,leml", "-o", tmp_path / "kept"
        )
        assert code == 0
        assert re.search(r"│ +dismec │ +\d+\.\d\d ± \d+\.\d\d", out)
        assert "train s" in out
        assert "1 to predict" in out


class TestMistakes:
    def test_an_unknown_system_is_reported_with_the_known_ones(self, files):
        code, _, err = compared(files[0], "--test", files[1], "--systems", "dismec,magic")
        assert code == 2
        assert err.startswith("dismec: unknown system 'magic'; expected one of dismec, ")

    @pytest.mark.parametrize("kind", ["texts", "rows"])
    def test_the_best_model_takes_texts_or_rows(self, kind, files, texts, tmp_path):
        train, test = (texts, texts) if kind == "texts" else files
        options = ("--systems", "dismec,dismec-best", "-o", tmp_path / "out", "--json", "--quiet")
        code, out, err = compared(train, "--test", test, *options)
        assert code == 0, err
        plain, best = (json.loads(out)["systems"][name] for name in ("dismec", "dismec-best"))
        assert best["P@1"] >= plain["P@1"] - 5
        assert best["PSP@5"] >= plain["PSP@5"] - 5

    def test_texts_and_rows_do_not_mix(self, files, texts):
        code, _, err = compared(texts, "--test", files[1])
        assert code == 2
        assert "holds texts" in err

    def test_an_unwritable_page_is_refused_before_any_work(self, files, tmp_path):
        code, _, err = compared(
            files[0], "--test", files[1], "--html", tmp_path / "no" / "page.html"
        )
        assert code == 2
        assert "no such directory" in err

    def test_data_without_labels_are_refused(self, pair, tmp_path):
        bare = pair.train._replace(Y=sp.csr_array(pair.train.Y.shape, dtype=np.uint8))
        with pytest.raises(DataError, match="no training row has a label"):
            Comparison(tmp_path).run(Pair(bare, pair.test), ["dismec"])

    def test_test_data_without_labels_are_refused(self, pair, tmp_path):
        bare = pair.test._replace(Y=sp.csr_array(pair.test.Y.shape, dtype=np.uint8))
        with pytest.raises(DataError, match="no test row has a label"):
            Comparison(tmp_path).run(Pair(pair.train, bare), ["dismec"])

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (["--systems", ""], "no systems given"),
            (["--html", "."], "is a directory"),
            (["-o", __file__], "is a file"),
        ],
    )
    def test_mistakes_are_reported_before_any_work(self, files, options, why):
        code, _, err = compared(files[0], "--test", files[1], *options)
        assert code == 2
        assert why in err

    def test_a_folder_that_is_not_an_environment_is_refused_and_left_alone(self, files, tmp_path):
        (tmp_path / "diary.txt").write_text("dear")
        code, _, err = compared(files[0], "--test", files[1], "--peers", tmp_path)
        assert code == 2
        assert "is not a Python environment" in err
        assert [p.name for p in tmp_path.iterdir()] == ["diary.txt"]


def test_systems_are_run_in_the_order_of_tables():
    assert check_systems(["plt", "dismec"], tuned=False) == ["dismec", "plt"]
    assert check_systems(["plt", "dismec"], tuned=True) == [
        "dismec", "dismec-tuned", "plt", "plt-tuned",
    ]  # fmt: skip
    assert check_systems(["plt-tuned"], tuned=False) == ["plt-tuned"]
    assert check_systems(["xr-linear"], tuned=True) == ["xr-linear", "xr-linear-tuned"]


def test_every_system_can_be_run():
    from dismec.compare.ours import OURS
    from dismec.compare.worker import PEERS

    assert {*comparison._KNOWN} == {*OURS, *PEERS}


def test_features_only_in_test_data_do_no_harm(pair, tmp_path):
    wide = pair.test._replace(X=sp.hstack([pair.test.X, sp.csr_array((200, 7))]).tocsr())
    found = Comparison(tmp_path).run(Pair(pair.train, wide), ["dismec"])
    assert found["data"]["features"] == pair.test.X.shape[1] + 7
    assert found["systems"]["dismec"]["P@1"] > 0


def test_labels_without_training_rows_are_reported(pair, tmp_path, monkeypatch):
    fake_system(tmp_path, monkeypatch, QUICK)
    more = sp.hstack([pair.test.Y, np.ones((200, 1), np.uint8)]).tocsr()
    news = []
    kept = Comparison(tmp_path / "kept")
    kept.run(Pair(pair.train, pair.test._replace(Y=more)), ["plt"], news.append)
    share = 200 / more.nnz
    assert any(line.startswith(f"{share:.1%} of the true labels") for line in news)


def test_words_that_look_like_labels_are_not_labels(tmp_path):
    texts = [("a __label__7 b", ["x"]), ("c\nd", ["y"])]
    source = Texts.of(pd.DataFrame(texts, columns=["text", "labels"]))
    pair = pair_of_texts(source, source)
    write_rows(tmp_path, pair)
    assert (tmp_path / "train.ft").read_text() == "__label__0 a b\n__label__1 c d\n"
