from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from conftest import random_problem
from dismec import ModelError, load_data, open_model, save_data
from dismec.cli import main
from dismec.data.dataset import Dataset


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with data in several formats and a model."""
    directory = tmp_path_factory.mktemp("a directory with blanks")
    X, Y = random_problem()
    names = [f"tag {i}" for i in range(Y.shape[1])]
    save_data(Dataset(X, Y, names), directory / "data.xmc")
    for ending in (".txt", ".txt.gz", ".svm"):
        save_data(Dataset(X, Y, None), directory / f"data{ending}")
    ok("train", directory / "data.xmc", "-o", directory / "named", "--block-size", "15")
    ok("train", directory / "data.txt", "-o", directory / "model")
    return directory


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="dismec")


def ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments):
    """Return the one-line reason."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    *_, last = result.stderr.strip().splitlines()
    return last


def test_every_format_gives_the_same_model(files, tmp_path):
    expected = open_model(files / "model").weights
    for ending in (".txt.gz", ".svm", ".xmc"):
        ok("train", files / f"data{ending}", "-o", tmp_path / ending[1:], "--threads", "2")
        weights = open_model(tmp_path / ending[1:]).weights
        assert weights.data.tobytes() == expected.data.tobytes()


def test_predict_writes_text_json_lines_and_arrays(files, tmp_path):
    labels, scores = open_model(files / "named").predict_topk(load_data(files / "data.xmc").X, 3)
    text = ok("predict", files / "model", files / "data.txt", "-k", "3").splitlines()
    assert len(text) == 300
    assert [int(pair.split(":")[0]) for pair in text[7].split()] == labels[7].tolist()
    named = ok("predict", files / "named", files / "data.txt", "-k", "1").splitlines()
    assert named[7].startswith(f'"tag {labels[7, 0]}":')
    for ending in ("txt", "jsonl", "npz"):
        ok(
            "predict",
            files / "named",
            files / "data.txt",
            "-k",
            "3",
            "-o",
            tmp_path / f"p.{ending}",
        )
    entry = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[7])
    assert entry["labels"] == [f"tag {label}" for label in labels[7]]
    np.testing.assert_allclose(entry["scores"], scores[7], rtol=1e-6)
    with np.load(tmp_path / "p.npz") as arrays:
        np.testing.assert_array_equal(arrays["labels"], labels)
        np.testing.assert_array_equal(arrays["scores"], scores)


def test_places_beyond_the_labels_are_left_out_of_text(files):
    first = ok("predict", files / "model", files / "data.txt", "-k", "2000000000").splitlines()[0]
    assert len(first.split()) == 40


def test_places_beyond_the_labels_count_as_misses(files):
    result = json.loads(
        ok("evaluate", files / "model", files / "data.txt", "-k", "40,80,2000000000", "--json")
    )
    assert result["P@40"] == pytest.approx(2 * result["P@80"], abs=0.02)
    assert result["Coverage@80"] == 100
    for metric in ("nDCG", "PSP", "PSnDCG", "R", "Coverage"):
        assert result[f"{metric}@40"] == result[f"{metric}@80"] == result[f"{metric}@2000000000"]


def test_evaluate_prints_percent_as_json_and_as_a_table(files):
    printed = json.loads(ok("evaluate", files / "model", files / "data.txt", "--json"))
    X, Y, _ = load_data(files / "data.txt")
    for key, value in open_model(files / "model").evaluate(X, Y).items():
        assert printed[key] == pytest.approx(value, abs=0.006)
    assert {"P@1", "nDCG@3", "PSP@5", "PSnDCG@5", "R@5", "Coverage@5"} < printed.keys()
    assert printed["rows"] == 300
    table = ok("evaluate", files / "model", files / "data.txt", "-k", "1,2")
    assert f"{printed['P@1']:.2f}" in table
    assert "@2" in table


def test_inspect_distinguishes_data_and_models(files):
    data = json.loads(ok("inspect", files / "data.svm", "--json"))
    assert (data["rows"], data["features"], data["labels"]) == (300, 80, 40)
    model = json.loads(ok("inspect", files / "named", "--json"))
    assert model["labels"] == 40
    assert model["weights"] == open_model(files / "named").weights.nnz
    assert model["labels not solved"] == 0
    assert model["C"] == 1.0
    table = dict(line.split("  ", 1) for line in ok("inspect", files / "model").splitlines())
    assert "share of weights kept" in table
    assert table["complete"].strip() == "yes"


def test_convert_keeps_the_data(files, tmp_path):
    X, Y, _ = load_data(files / "data.txt.gz")
    sp.save_npz(tmp_path / "x.npz", X)
    sp.save_npz(tmp_path / "y.npz", Y)
    ok("convert", tmp_path / "x.npz", tmp_path / "back.txt", "--labels", tmp_path / "y.npz")
    assert (tmp_path / "back.txt").read_bytes() == (files / "data.txt").read_bytes()
    from_text = ok("predict", files / "model", files / "data.txt")
    assert ok("predict", files / "model", tmp_path / "x.npz") == from_text


def test_generate_and_train_on_it(tmp_path):
    shape = ["--rows", "300", "--features", "200", "--labels", "20", "--seed", "3"]
    for name in ("a", "b"):
        ok("generate", "-o", tmp_path / name, *shape)
    assert (tmp_path / "a/train.txt").read_bytes() == (tmp_path / "b/train.txt").read_bytes()
    ok("train", tmp_path / "a/train.txt", "-o", tmp_path / "model")
    assert json.loads(ok("evaluate", tmp_path / "model", tmp_path / "a/test.txt", "--json"))["rows"]


def test_demo_of_a_handful_of_rows(tmp_path):
    printed = ok("demo", "--rows", "10", "--labels", "1", "-o", tmp_path)
    assert "-1:" not in printed


def test_demo_ends_with_metrics_and_never_overwrites_unasked(tmp_path):
    command = ("demo", "--rows", "500", "--labels", "30", "-o", tmp_path)
    printed = ok(*command)
    assert "nDCG" in printed
    assert (tmp_path / "model" / "manifest.json").exists()
    result = run(*command)
    assert result.exit_code == 2
    assert "train.txt exists: choose another file, or use --overwrite" in result.stderr
    ok(*command, "--overwrite")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["train", "nothing.txt", "-o", "new"], "nothing.txt"),
        (["train", "cut.txt", "-o", "new"], "cut.txt:"),
        (["train", "data.txt", "-o", "new", "--C", "-1"], "C is -1.0"),
        (["train", "data.txt", "-o", "new", "--C", "nan"], "C is nan"),
        (["train", "data.txt", "-o", "new", "--bias", "inf"], "bias is inf"),
        (["train", "data.txt", "-o", "new", "--block-size", "0"], "block_size is 0"),
        (["train", "data.txt", "-o", "new", "--threads", "0"], "--threads"),
        (["train", "data.txt"], "--output"),
        (["train", "data.txt", "-o", "model"], "finished model"),
        (["train", "data.txt", "-o", "model", "--C", "2"], "finished model"),
        (["train", "data.txt", "-o", "data.txt"], "data.txt"),
        (["predict", "nowhere", "data.txt"], "no such directory"),
        (["predict", "model", "wide.txt"], "99 features, the model has 80"),
        (["predict", "model", "data.txt", "-k", "0"], "-k"),
        (["predict", "model", "data.txt", "-k", "99999999999999999999"], "-k"),
        (["evaluate", "model", "data.txt", "-k", "99999999999999999999"], "from 1 to"),
        (["evaluate", "model", "data.txt", "--propensity-a", "1e308"], "propensity constants"),
        (["generate", "-o", "new", "--labels-per-row", "-1"], "labels_per_row is -1"),
        (["generate", "-o", "new", "--labels-per-row", "nan"], "labels_per_row is nan"),
        (["generate", "-o", "new", "--features", "3000000000"], "31 bits"),
        (["generate", "-o", "new", "--seed", "-1"], "--seed"),
        (["train", "data.txt", "-o", "new", "--C", "1e39"], "C is 1e+39"),
        (["train", "data.txt", "-o", "new", "--threads", "1000000"], "--threads"),
        (["convert", "data.txt", "new.npz"], "unknown extension"),
        (["predict", "model", "data.txt", "-o", "no/such/place.txt"], "no such directory"),
        (["predict", "nowhere", "nothing", "-o", "data.txt"], "data.txt exists"),
        (["predict", "nowhere", "nothing", "-o", "model"], "is a directory"),
        (
            ["predict", "model", "data.txt", "-o", "new.xls"],
            "new.xls: unknown extension; use .txt, .csv",
        ),
        (["predict", "model", "data.txt", "-o", "new"], "or --format"),
        (["predict", "model", "data.txt", "-o", "new.npz.gz"], "unknown extension"),
        (["predict", "model", "data.txt", "--format", "npz", "-o", "x.gz"], "omit .gz"),
        (
            ["predict", "model", "data.txt", "--json", "--format", "csv"],
            "--json cannot be combined with --format",
        ),
        (["predict", "model"], "either DATA or --text"),
        (["predict", "model", "data.txt", "--text", "words"], "either DATA or --text"),
        (["predict", "model", "--text", "words"], "numeric features: give DATA"),
        (
            ["predict", "model", "--text", "a", "--text-column", "b"],
            "cannot be combined with --text",
        ),
        (["evaluate", "model", "data.txt", "-k", "1,x"], "1,x"),
        (["evaluate", "model", "data.txt", "-k", "0"], "from 1"),
        (["inspect", "nothing"], "nothing"),
        (["convert", "data.txt", "data.pdf"], "pdf"),
        (["frobnicate"], "No such command"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(files, monkeypatch, arguments, reason):
    monkeypatch.chdir(files)
    text = (files / "data.txt").read_bytes()
    (files / "cut.txt").write_bytes(text[: len(text) // 2])
    (files / "wide.txt").write_bytes(b"1 99 40\n0 98:1\n")
    before = sorted(p.name for p in files.iterdir())
    assert reason in refused(*arguments)
    assert sorted(p.name for p in files.iterdir()) == before


def test_a_header_too_large_for_this_machine_is_refused_before_allocating(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 1 << 16)  # 4 GiB
    (tmp_path / "huge.txt").write_text("1 2147483000 2147483000\n0 98:1\n")
    assert "this machine has 4" in refused("train", tmp_path / "huge.txt", "-o", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_narrower_data_is_padded(files, tmp_path):
    (tmp_path / "narrow.txt").write_text("1 3 2\n0 2:1\n")
    assert len(ok("predict", files / "model", tmp_path / "narrow.txt").split()) == 5
    assert json.loads(ok("evaluate", files / "model", tmp_path / "narrow.txt", "--json"))["rows"]


def test_labels_that_only_the_data_has_count_as_missed(files, tmp_path):
    (tmp_path / "more.txt").write_text("1 80 500\n499 2:1\n")
    result = json.loads(ok("evaluate", files / "model", tmp_path / "more.txt", "--json"))
    assert result["P@5"] == 0


def test_labels_that_miss_the_tolerance_are_reported(files, tmp_path):
    result = run("train", files / "data.txt", "-o", tmp_path / "m", "--tol", "1e-12", "--quiet")
    assert result.exit_code == 0
    assert "labels stopped before the tolerance was reached" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_quiet_prints_nothing(files, tmp_path):
    result = run("train", files / "data.txt", "-o", tmp_path / "m", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def dismec(*arguments, **options):
    command = [sys.executable, "-m", "dismec", *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, text=True, timeout=60, **streams)


def test_version_names_the_instruction_set():
    assert "(base kernels)" in dismec("--version", env={**os.environ, "DISMEC_ISA": "base"}).stdout
    wrong = dismec("--version", env={**os.environ, "DISMEC_ISA": "sse9"})
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
    assert "DISMEC_ISA=sse9" in wrong.stderr


def test_every_instruction_set_solves_to_the_same_precision(files, tmp_path):
    from dismec.cpu import kernels

    expected = open_model(files / "model").weights
    for isa in kernels.cpu_isas():
        env = {**os.environ, "DISMEC_ISA": isa}
        out = tmp_path / isa
        assert dismec("train", files / "data.txt", "-o", out, "--delta", 0, env=env).returncode == 0
        weights = open_model(out).weights
        assert open_model(out).manifest.isa == isa
        assert abs(weights - expected).max() < 0.03


def test_closed_pipe_ends_quietly(files):
    command = f'"{sys.executable}" -m dismec predict model data.txt | head -n 1'
    out = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=files)
    assert out.stdout.count("\n") == 1
    assert out.stderr == ""


@pytest.mark.parametrize(
    "arguments", ["--version", "inspect model", "predict model one.txt", "evaluate model one.txt"]
)
def test_a_full_disk_under_the_output_is_reported(files, arguments):
    (files / "one.txt").write_text("1 80 40\n0 0:1\n")
    with Path("/dev/full").open("w") as full:
        out = dismec(*arguments.split(), cwd=files, stdout=full)
    assert out.returncode == 2
    assert out.stderr == "dismec: No space left on device\n"


def test_closed_output_is_not_an_error(files, tmp_path):
    for command in ("predict model data.txt >&-", f"train data.txt -o '{tmp_path}/m' 2>&- <&-"):
        line = f'"{sys.executable}" -m dismec {command}'
        assert (
            subprocess.run(line, shell=True, cwd=files, stdout=subprocess.DEVNULL).returncode == 0
        )


def test_characters_that_the_terminal_cannot_show_are_escaped(tmp_path):
    X, Y = random_problem(rows=30, labels=2)
    save_data(Dataset(X, Y, ["é", "✓"]), tmp_path / "data.xmc")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert dismec("train", "data.xmc", "-o", "Σ", cwd=tmp_path, env=env).returncode == 0
    assert '"\\u2713":' in dismec("predict", "Σ", "data.xmc", cwd=tmp_path, env=env).stdout


def test_progress_is_a_bar_on_a_terminal_and_lines_in_a_log(files, tmp_path):
    in_log = dismec("train", files / "data.txt", "-o", tmp_path / "log")
    assert "training: 40 of 40 labels" in in_log.stderr
    assert "\x1b" not in in_log.stderr

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dismec", "train", str(files / "data.txt")]
    env = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [*command, "-o", str(tmp_path / "bar")], stderr=theirs, stdout=theirs, env=env
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:
            pass  # Linux signals a closed terminal this way
        os.close(ours)
    assert process.returncode == 0
    assert "━" in seen.decode()
    assert "labels" in seen.decode()


def test_penalties_weightings_and_rankings_on_the_command_line(tmp_path):
    run = CliRunner().invoke
    data = str(tmp_path / "data")
    shape = ["--rows", "400", "--features", "300", "--labels", "30"]
    assert run(main, ["generate", "-o", data, *shape]).exit_code == 0
    found = {}
    for name, options in {
        "plain": ["--calibrate"],
        "l1": ["--penalty", "l1"],
        "weighted": ["--weighting", "propensity", "--positive-weight", "2"],
    }.items():
        model = str(tmp_path / name)
        done = run(main, ["train", f"{data}/train.txt", "-o", model, "--quiet", *options])
        assert done.exit_code == 0, done.output
        found[name] = open_model(model)
    assert found["l1"].nnz < found["plain"].nnz / 3
    assert found["l1"].params["delta"] == 0
    assert found["plain"].params["delta"] == 0.01
    assert found["weighted"].params["weighting"] == "propensity"

    def psp(name, *options):
        model = str(tmp_path / name)
        done = run(main, ["evaluate", model, f"{data}/test.txt", "--json", *options])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["PSP@1"]

    assert psp("plain", "--aim", "psp") > psp("plain")
    assert psp("weighted") > psp("plain")
    assert psp("l1", "--aim", "psp:0.3") != psp("l1")
    predict = ["predict", str(tmp_path / "plain"), f"{data}/test.txt", "--aim", "psp"]
    assert len(run(main, predict).stdout.splitlines()) == 80
    for wrong in (["--rank", "probability"], ["--threshold", "0.5"]):
        assert run(main, [*predict, *wrong]).exit_code == 2
    wrong = ["train", f"{data}/train.txt", "-o", str(tmp_path / "x"), "--penalty", "l1"]
    assert run(main, [*wrong, "--weighting", "propensity"]).exit_code == 2


def test_errors_name_the_option_instead_of_the_parameter(files):
    reason = refused("train", files / "data.txt", "-o", files / "model")
    assert reason.endswith("choose another directory, or overwrite it (--overwrite)")
    with pytest.raises(ModelError, match=r"or overwrite it \(overwrite=True\)$"):
        open_model(files / "model").save(files / "model")
