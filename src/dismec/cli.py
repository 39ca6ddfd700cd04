"""The command line: thin commands over the library."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dismec.errors import DismecError

if TYPE_CHECKING:
    from dismec.dataset import Dataset
    from dismec.model import Model, TopkModel
    from dismec.training import Progress

__all__ = ["main"]

_F = TypeVar("_F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_MOST_PLACES = 2**31 - 1


class _Commands(click.Group):
    """Errors that a person can do something about become one line and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:  # closed by whoever started us
                setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  until the end
            elif isinstance(stream, TextIOWrapper):
                # Names of labels may have letters that the terminal's encoding lacks.
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _errors_told(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_told(ctx):
            return super().invoke(ctx)


@contextmanager
def _errors_told(ctx: click.Context) -> Iterator[None]:
    def fail(message: str) -> None:
        try:
            sys.stdout.flush()
        except OSError:
            sys.stdout = None  # else Python tries, fails and complains once more at the end
        click.echo(f"dismec: {' '.join(message.split())}", err=True)
        ctx.exit(2)

    try:
        yield
    except DismecError as error:
        fail(str(error))
    except KeyboardInterrupt:
        click.echo("dismec: stopped", err=True)
        ctx.exit(130)
    except BrokenPipeError:
        # The reader of our output has seen enough; there is nobody to tell.
        sys.stdout = None
        ctx.exit(141)
    except MemoryError:
        fail("out of memory")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{error.strerror or error}")


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    from dismec.native import kernels

    click.echo(f"dismec {version('dismec')} ({kernels.isa} kernels)")
    ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the instruction set in use.",
)
def main() -> None:
    """Exact one-vs-rest classification for thousands to millions of labels.

    DATA is XMC text (header "rows features labels", then "l1,l2 f:v f:v"), multi-label svmlight
    without a header, either of them gzipped, a binary dataset (.xmc), or a scipy matrix (.npz,
    labels by --labels).
    """


def _data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--labels", type=_PATH, help="The label matrix that goes with DATA if that is an .npz file."
    )(command)


def _parse_delta(_: click.Context, __: click.Parameter, value: str) -> float | str:
    try:
        return "auto" if value == "auto" else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor auto") from None


def _precision(default: str | None, **more: Any) -> Callable[[_F], _F]:
    return click.option(
        "--precision",
        type=click.Choice(["float16", "float32", "int8"]),
        default=default,
        help="How weights are stored; int8: eight bits each.",
        **more,
    )


_threads = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads [default: all available CPUs]."
)
_cluster = click.option(
    "--cluster",
    metavar="ADDRESS|FILE",
    help="Run on the Dask cluster of this scheduler: tcp://host:8786, or its scheduler file.",
)
_quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@main.command()
@click.argument("data", type=_PATH)
@click.option("-o", "--output", "model", type=_PATH, required=True, help="The model directory.")
@click.option("--C", "C", type=float, default=1.0, show_default=True, help="Weight of the losses.")
@click.option(
    "--delta",
    default="0.01",
    show_default=True,
    callback=_parse_delta,
    metavar="NUMBER|auto",
    help="Weights with |w| below this are dropped; auto: as many as P@k allows.",
)
@click.option(
    "--validation",
    type=_PATH,
    help="Data to choose --delta auto on [default: a tenth of the rows of DATA].",
)
@click.option("--validation-labels", type=_PATH, help="As --labels, for --validation.")
@click.option(
    "--tol", type=float, default=0.01, show_default=True, help="LIBLINEAR's stopping tolerance."
)
@click.option("--tfidf", is_flag=True, help="Multiply features by their idf in DATA.")
@click.option("--no-normalize", is_flag=True, help="Leave rows at the length they have.")
@click.option(
    "--bias", type=float, default=1.0, show_default=True, help="Value of the bias feature; 0: none."
)
@click.option("--block-size", type=int, default=1000, show_default=True, help="Labels a block.")
@_precision("float16", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@_cluster
@_data_options
@_threads
@_quiet
def train(
    data: Path,
    model: Path,
    labels: Path | None,
    validation: Path | None,
    validation_labels: Path | None,
    threads: int | None,
    cluster: str | None,
    overwrite: bool,
    quiet: bool,
    no_normalize: bool,
    **params: Any,
) -> None:
    """Train a model on DATA.

    On a directory that holds an unfinished run of the same training it goes on where that stopped.
    """
    from dismec.dataset import is_binary, load_data
    from dismec.training import TrainingParams
    from dismec.training import train as run

    try:
        chosen = TrainingParams(normalize=not no_normalize, **params)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if (validation or validation_labels) and not (validation and chosen.chooses_delta):
        raise click.UsageError("--validation goes with --delta auto, --validation-labels with both")
    dataset = load_data(data, labels=labels, threads=threads)
    judge = None
    if validation:
        judge = load_data(validation, labels=validation_labels, threads=threads)
    begin = time.perf_counter()
    try:
        with _progress(quiet, "training") as progress, _cluster_news(cluster, quiet):
            trained = run(
                dataset.X,
                dataset.Y,
                model,
                chosen,
                names=dataset.names,
                validation=judge and judge[:2],
                threads=threads,
                overwrite=overwrite,
                progress=progress,
                client=cluster,
                source=data if is_binary(data) else None,
            )
    except KeyboardInterrupt:
        click.echo(f"{model}: run the same command again to go on where this stopped", err=True)
        raise
    if not quiet:
        if chosen.chooses_delta:
            said = trained.params
            click.echo(
                f"delta {said['delta']}, chosen {said['delta_auto']}: {said['delta_effect']}",
                err=True,
            )
        _say_trained(trained, model, time.perf_counter() - begin)
    _say_unsolved(trained)


@contextmanager
def _cluster_news(cluster: str | None, quiet: bool) -> Iterator[None]:
    """Print what the library has to say of a cluster, and not what Dask has."""
    if cluster is None:
        yield
        return
    import logging

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            click.echo(f"dismec: {record.getMessage()}", err=True)

    logger, handler = logging.getLogger("dismec"), Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    _hush_dask()
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _hush_dask() -> None:
    """Keep Dask from printing what it has to say."""
    import logging

    from dismec import dask_engine  # noqa: F401  sets the levels of Dask's loggers

    def is_told(record: logging.LogRecord) -> bool:
        # How Dask ends its own waiting for a worker that has died.
        return not (record.exc_info and getattr(record.exc_info[0], "__name__", "") == "AllExit")

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(is_told)


def _say_trained(model: Model, path: Path, seconds: float) -> None:
    size = sum(receipt.bytes for receipt in model.manifest.files)
    click.echo(
        f"{path}: {model.n_labels:,} labels, {model.nnz:,} weights in {model.precision}, "
        f"{size / 1e6:,.1f} MB; {seconds:.1f} s",
        err=True,
    )


def _say_unsolved(model: Model) -> None:
    stats = model.manifest.stats
    unsolved = stats.unsolved if stats else 0
    if unsolved:
        click.echo(
            f"dismec: {unsolved:,} of {model.n_labels:,} labels stopped before the tolerance was "
            "reached; their weights are the best found",
            err=True,
        )


@contextmanager
def _progress(quiet: bool, what: str) -> Iterator[Progress | None]:
    """A bar on a terminal, a line now and then in a log, nothing if quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar(what) as bar:
            yield bar
    else:
        yield _lines(what)


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("labels, {task.fields[rate]}/s,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=None, rate="0")
        begin = time.perf_counter()
        first: int | None = None

        def update(done: int, total: int) -> None:
            nonlocal first
            first = done if first is None else first
            rate = (done - first) / (time.perf_counter() - begin)
            bar.update(task, completed=done, total=total, rate=f"{rate:,.0f}")

        yield update


def _lines(what: str, every: float = 10.0) -> Progress:
    begin = last = time.perf_counter()
    first: int | None = None

    def update(done: int, total: int) -> None:
        nonlocal first, last
        now = time.perf_counter()
        if first is None:
            first = done
            if done:
                click.echo(f"{what}: going on after {done:,} of {total:,} labels", err=True)
        if now - last < every and done < total:
            return
        last = now
        rate = (done - first) / (now - begin)
        left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
        click.echo(f"{what}: {done:,} of {total:,} labels, {rate:,.0f}/s{left}", err=True)

    return update


@main.command()
@click.argument("model", type=_PATH)
@click.argument("data", type=_PATH)
@click.option(
    "-k", type=click.IntRange(1, _MOST_PLACES), default=5, show_default=True, help="Labels a row."
)
@click.option(
    "-o",
    "--output",
    type=_PATH,
    help='File to write [default: print]. By its ending: .jsonl, .npz, or text "label:score …".',
)
@_cluster
@_threads
def predict(
    model: Path,
    data: Path,
    k: int,
    output: Path | None,
    cluster: str | None,
    threads: int | None,
) -> None:
    """Print the k best labels of every row of DATA with their scores."""
    from dismec.dataset import load_features
    from dismec.predictions import print_text, write_predictions

    with _opened(model, cluster) as opened:
        rows = load_features(data, threads=threads)
        if output is None or output.suffix != ".npz":
            k = min(k, max(opened.n_labels, 1))  # empty places are not written
        top, scores = opened.predict_topk(rows, k, threads=threads)
    if output is None:
        print_text(top, scores, opened.names, sys.stdout)
        sys.stdout.flush()
    else:
        write_predictions(top, scores, opened.names, output)


@contextmanager
def _opened(model: Path, cluster: str | None) -> Iterator[TopkModel]:
    """A model, here or on a cluster."""
    from dismec.model import open_model

    if cluster is None:
        yield open_model(model, check=True)
        return
    with _cluster_news(cluster, quiet=False):
        from dismec.cluster_predictor import ClusterModel, ClusterPredictor
        from dismec.dask_engine import Cluster

        with (
            Cluster.connect(cluster) as connection,
            ClusterPredictor(connection, model) as predictor,
        ):
            yield ClusterModel(predictor)


def _parse_ks(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        ks = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,3,5") from None
    if not 1 <= ks[0] <= ks[-1] <= _MOST_PLACES:
        raise click.BadParameter(f"places count from 1 to {_MOST_PLACES}")
    return ks


@main.command()
@click.argument("model", type=_PATH)
@click.argument("data", type=_PATH)
@click.option(
    "-k", "ks", default="1,3,5", show_default=True, callback=_parse_ks, help="Places to report."
)
@click.option("--propensity-a", "A", type=float, default=0.55, show_default=True)
@click.option("--propensity-b", "B", type=float, default=1.5, show_default=True)
@_cluster
@_data_options
@_threads
@_json
def evaluate(
    model: Path,
    data: Path,
    ks: tuple[int, ...],
    A: float,
    B: float,
    cluster: str | None,
    labels: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure a model on DATA: P@k, nDCG@k, PSP@k and more, in percent.

    The propensities come from the label counts of the training data with the constants A and B
    (0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for Amazon data, else 0.55 and 1.5).
    """
    from dismec.dataset import load_data

    with _opened(model, cluster) as opened:
        dataset = load_data(data, labels=labels, threads=threads)
        result = opened.evaluate(dataset.X, dataset.Y, ks, A=A, B=B, threads=threads)
    if as_json:
        click.echo(json.dumps({key: round(value, 2) for key, value in result.items()}))
    else:
        _print_metrics(result, ks)


def _print_metrics(result: dict[str, float], ks: tuple[int, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("%", *(f"@{k}" for k in ks), caption=f"{int(result['rows']):,} rows")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in dict.fromkeys(key.split("@")[0] for key in result if "@" in key):
        table.add_row(name, *(f"{result[f'{name}@{k}']:.2f}" for k in ks))
    Console().print(table)


@main.command()
@click.argument("model", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="The new model directory.")
@click.option("--delta", type=float, help="Weights with |w| below this are dropped.")
@_precision(None)
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@_quiet
def prune(
    model: Path,
    output: Path,
    delta: float | None,
    precision: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Write a smaller model, as training with a larger delta or another precision would give it.

    A model of an older format is written in the one of today.
    """
    from dismec.model import open_model

    if output.exists() and model.exists() and output.samefile(model):
        raise click.UsageError(f"{output} is the model itself: choose another directory")
    begin = time.perf_counter()
    opened = open_model(model, check=True)
    opened.pruned(delta, precision=precision).save(output, overwrite=overwrite)
    if not quiet:
        _say_trained(open_model(output, check=False), output, time.perf_counter() - begin)


@main.command()
@click.argument("path", type=_PATH)
@_data_options
@_json
def inspect(path: Path, labels: Path | None, as_json: bool) -> None:
    """Say what a data file or a model directory holds."""
    from dismec.report import describe_data, describe_model

    facts = describe_model(path) if path.is_dir() else describe_data(path, labels)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        if isinstance(value, bool):
            text = "yes" if value else "no"
        else:
            text = f"{value:,}" if isinstance(value, int) else str(value)
        click.echo(f"{key:{width}}  {text}")


def _number(name: str, least: int, most: int | None, default: int, text: str) -> Callable[[_F], _F]:
    """An option that is a whole number from `least` to `most`."""
    kind = click.IntRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@main.command()
@click.argument("model", type=_PATH)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@_number("--port", 0, 65535, 8000, "0: any that is free.")
@_number("--max-body", 1, 1000, 10, "MB a request.")
@_number("--max-rows", 1, None, 1000, "Rows a request.")
@_number("--max-k", 1, _MOST_PLACES, 100, "Labels a row.")
@_number("--queue", 0, None, 100, "Requests that may wait; more get 503.")
@_cluster
@_threads
def serve(
    model: Path,
    host: str,
    port: int,
    cluster: str | None,
    threads: int | None,
    max_body: int,
    max_rows: int,
    max_k: int,
    queue: int,
) -> None:
    """Answer HTTP requests for predictions of MODEL.

    POST /predict; GET /health, /model, /metrics, /docs. If the environment variable DISMEC_TOKEN
    is set, requests must carry it ("Authorization: Bearer …"). SIGHUP opens MODEL anew, SIGTERM
    finishes what was begun and ends.
    """
    import logging

    try:
        from dismec import server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dismec"):
            raise
        raise DismecError(
            f"serving needs {error.name}, which is not installed: pip install 'dismec[server]'"
        ) from None
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    if cluster is not None:
        _hush_dask()
    server.serve(
        model,
        host=host,
        port=port,
        threads=threads,
        limits=server.Limits(max_body * 1_000_000, max_rows, max_k, queue),
        token=os.environ.get("DISMEC_TOKEN"),
        cluster=cluster,
        ready=lambda address: click.echo(f"serving {model} on {address}"),
    )


@main.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@_data_options
@click.option("--labels-to", type=_PATH, help="Where the labels go if TARGET is an .npz file.")
@_threads
def convert(
    source: Path, target: Path, labels: Path | None, labels_to: Path | None, threads: int | None
) -> None:
    """Write the data of SOURCE to TARGET in the format of its ending.

    .xmc (binary, opens at once), .txt or .txt.gz (XMC text), .svm or .svm.gz (no header), .npz.
    """
    from dismec.dataset import load_data, save_data

    save_data(load_data(source, labels=labels, threads=threads), target, labels=labels_to)


@main.command()
@click.option("-o", "--output", "directory", type=_PATH, required=True, help="Where files go.")
@click.option("--rows", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--features", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--labels", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--labels-per-row", type=float, default=3.0, show_default=True)
@click.option("--features-per-row", type=float, default=42, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--format", "ending", type=click.Choice(["txt", "txt.gz", "svm", "xmc"]), default="txt"
)
def generate(directory: Path, ending: str, **shape: Any) -> None:
    """Make data of the shape that extreme classification has: train and test file in a directory.

    Zipf features, power-law labels, topics; the same for the same seed.
    """
    from dismec.synthetic import generate as make
    from dismec.synthetic import write

    write(directory, *make(**shape), ending=f".{ending}")


@main.command()
@click.option("--rows", type=click.IntRange(min=10), default=10_000, show_default=True)
@click.option("--labels", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "-o", "--output", "keep", type=_PATH, help="Keep data and model here [default: nowhere]."
)
@_threads
def demo(rows: int, labels: int, seed: int, keep: Path | None, threads: int | None) -> None:
    """Generate data, train on it, evaluate, and predict a few rows."""
    from dismec.dataset import load_data
    from dismec.synthetic import generate as make
    from dismec.synthetic import write
    from dismec.training import train as run

    with tempfile.TemporaryDirectory(prefix="dismec-demo-") as scratch:
        directory = keep or Path(scratch)
        click.echo(f"Generating {rows:,} rows with {labels:,} labels …")
        write(directory, *make(rows=rows, features=2 * rows, labels=labels, seed=seed))
        data = load_data(directory / "train.txt", threads=threads)
        test = load_data(directory / "test.txt", threads=threads)
        click.echo(f"Training one classifier for each of {data.Y.shape[1]:,} labels …")
        begin = time.perf_counter()
        with _progress(not sys.stderr.isatty(), "training") as progress:
            model = run(
                data.X,
                data.Y,
                directory / "model",
                threads=threads,
                overwrite=True,
                progress=progress,
            )
        _say_trained(model, directory / "model", time.perf_counter() - begin)
        _print_metrics(model.evaluate(test.X, test.Y, threads=threads), (1, 3, 5))
        _print_examples(model, test)


def _print_examples(model: Model, test: Dataset, n_rows: int = 5) -> None:
    from rich.console import Console
    from rich.table import Table

    top, scores = model.predict_topk(test.X[:n_rows], k=3)
    table = Table("row", "true labels", "predicted label:score (✓ true)")
    for i in range(len(top)):
        truth = set(test.Y.indices[test.Y.indptr[i] : test.Y.indptr[i + 1]].tolist())
        predicted = "  ".join(
            f"{label}:{score:.2f}{' ✓' if label in truth else ''}"
            for label, score in zip(top[i].tolist(), scores[i].tolist(), strict=True)
            if label >= 0
        )
        table.add_row(str(i), " ".join(map(str, sorted(truth))), predicted)
    Console().print(table)
