"""The backend in Annif itself: its command line, and its projects in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("annif", reason="Annif is not installed: make annif")
pytest.importorskip("annif_dismec", reason="annif-dismec is not installed: make annif")

from annif.corpus import Document, DocumentList, SubjectSet
from annif.exception import (
    ConfigurationException,
    NotInitializedException,
    NotSupportedException,
    OperationFailedException,
)
from annif.registry import AnnifRegistry

import dismec
from annif_dismec.backend import DismecBackend

# What each subject's documents are about.
TOPICS = {
    "bread": "flour yeast oven loaf crust",
    "eggs": "egg yolk shell omelette boiled",
    "fish": "salmon river fillet scales bones",
    "soup": "broth bowl ladle simmer stock",
    "tea": "leaves kettle steep cup green",
}
PROJECTS = """\
[plain]
language=en
backend=dismec
vocab=kitchen
calibrate=0

[calibrated]
language=en
backend=dismec
vocab=kitchen
min_df=2
ngram=2

[refined]
language=en
backend=dismec
vocab=kitchen
C=2
delta=auto
refine=1

[without-tea]
language=en
backend=dismec
vocab=kitchen(exclude=http://example.org/tea)

[together]
language=en
backend=ensemble
vocab=kitchen
sources=plain,calibrated:2

[other]
language=en
backend=dummy
vocab=kitchen
"""


def uri(topic):
    return f"http://example.org/{topic}"


def texts_and_topics(n, seed):
    """Documents of two topics each, or now and then of one."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        chosen = rng.choice(list(TOPICS), size=rng.choice([1, 2, 2]), replace=False).tolist()
        words = [w for topic in chosen for w in rng.choice(TOPICS[topic].split(), 4).tolist()]
        rows.append((" ".join(rng.permutation(words).tolist()), chosen))
    return rows


def corpus_file(path, rows):
    lines = ["\t".join([text, " ".join(f"<{uri(t)}>" for t in topics)]) for text, topics in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def kitchen(tmp_path_factory):
    """A directory with projects, a vocabulary and files of documents."""
    folder = tmp_path_factory.mktemp("kitchen")
    (folder / "projects.cfg").write_text(PROJECTS)
    (folder / "kitchen.tsv").write_text("".join(f"<{uri(t)}>\t{t}\n" for t in TOPICS))
    corpus_file(folder / "train.tsv", texts_and_topics(120, seed=0))
    corpus_file(folder / "test.tsv", texts_and_topics(70, seed=1))
    annif(folder, "load-vocab", "kitchen", "kitchen.tsv", "--language", "en")
    return folder


def annif(folder, *command, stdin=None, check=True, script="annif"):
    """The output of one of Annif's commands, or its complaint."""
    program = Path(sys.executable).with_name(script)
    env = {**os.environ, "ANNIF_PROJECTS": "projects.cfg", "ANNIF_DATADIR": "data"}
    done = subprocess.run(
        [program, *command], cwd=folder, env=env, input=stdin, capture_output=True, text=True
    )
    assert (done.returncode == 0) is check, done.stderr
    return done.stdout if check else done.stderr


def project_of(folder, name):
    return AnnifRegistry(str(folder / "projects.cfg"), str(folder / "data"), False).get_project(
        name
    )


def documents(project, rows):
    index = project.subjects
    return [Document(t, SubjectSet([index.by_uri(uri(x)) for x in topics])) for t, topics in rows]


@pytest.fixture
def project(kitchen, tmp_path):
    """Makes a project with a directory of its own, trained if there are rows for it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "vocabs").symlink_to(kitchen / "data" / "vocabs")

    def make(name="plain", rows=(), **config):
        (tmp_path / "projects.cfg").write_text(PROJECTS)
        made = project_of(tmp_path, name)
        for key, value in config.items():
            made.config[key] = str(value)
        if rows:
            made.train(DocumentList(documents(made, rows)))
        return made

    return make


def suggested(batch, project):
    """For each document the topics and their scores, best first."""
    found = []
    for result in batch:
        named = [(project.subjects[s.subject_id].labels["en"], s.score) for s in result]
        found.append(named)
    return found


@pytest.mark.parametrize("name", ["plain", "calibrated", "refined"])
def test_the_command_line_trains_suggests_and_evaluates(kitchen, name):
    annif(kitchen, "train", name, "train.tsv", "--jobs", "2")
    assert f"{name} " in annif(kitchen, "list-projects")
    text = "salmon fillet with bones in a broth to simmer in a bowl"
    lines = annif(kitchen, "suggest", name, "--limit", "2", stdin=text).splitlines()
    found = [line.split("\t") for line in lines]
    assert {label for _, label, _ in found} == {"fish", "soup"}
    assert {identifier for identifier, _, _ in found} == {f"<{uri('fish')}>", f"<{uri('soup')}>"}
    assert all(0 < float(score) <= 1 for _, _, score in found)
    annif(kitchen, "eval", name, "test.tsv", "--metrics-file", f"{name}.json", "--limit", "2")
    metrics = json.loads((kitchen / f"{name}.json").read_text())
    assert metrics["Documents_evaluated"] == 70
    assert metrics["Recall_doc_avg"] > 0.95
    path = annif(kitchen, "dismec-model", name).strip()
    assert dismec.open_model(kitchen / path).names == sorted(map(uri, TOPICS))


def test_several_processes_say_the_same(kitchen):
    annif(kitchen, "train", "plain", "train.tsv")
    for script, jobs in (("annif", "1"), ("annif", "2"), ("annif-dismec", "2")):
        file = f"jobs-{script}-{jobs}.json"
        command = ("eval", "plain", "test.tsv", "--jobs", jobs, "--metrics-file", file)
        annif(kitchen, *command, script=script)
    one, *others = (json.loads(path.read_text()) for path in sorted(kitchen.glob("jobs-*.json")))
    assert all(other == pytest.approx(one) for other in others)


def test_it_takes_part_in_an_ensemble(kitchen):
    for name in ("plain", "calibrated"):
        annif(kitchen, "train", name, "train.tsv")
    lines = annif(kitchen, "suggest", "together", "--limit", "1", stdin="a boiled egg").splitlines()
    assert [line.split("\t")[1] for line in lines] == ["eggs"]


def test_cached_training_takes_the_documents_of_the_run_before(kitchen):
    annif(kitchen, "train", "plain", "train.tsv")
    annif(kitchen, "train", "plain", "--cached", "--backend-param", "dismec.C=4")
    path = annif(kitchen, "dismec-model", "plain").strip()
    assert dismec.open_model(kitchen / path).params["C"] == 4


def test_complaints_are_those_of_annif(kitchen):
    assert "Project is not trained" in annif(
        kitchen, "suggest", "without-tea", stdin="tea", check=False
    )
    wrong = ("train", "plain", "train.tsv", "--backend-param", "dismec.C=-1")
    assert "Misconfigured backend 'dismec': C is -1" in annif(kitchen, *wrong, check=False)
    (kitchen / "empty.tsv").write_text("")
    complaint = annif(kitchen, "train", "plain", "empty.tsv", check=False)
    assert "Cannot train dismec project with no documents" in complaint
    complaint = annif(kitchen, "learn", "plain", "train.tsv", check=False)
    assert "Learning not supported by backend" in complaint
    complaint = annif(kitchen, "dismec-model", "other", check=False)
    assert "the backend is not dismec" in complaint


@pytest.mark.parametrize("name", ["plain", "calibrated"])
def test_scores_are_in_order_and_between_0_and_1(project, name):
    made = project(name, texts_and_topics(80, seed=2))
    rows = texts_and_topics(20, seed=3)
    found = suggested(made.suggest(documents(made, rows)), made)
    model = dismec.open_model(made.backend.model_directory)
    labels, values = model.predict_topk([text for text, _ in rows], k=len(TOPICS))
    for ours, numbers, scores in zip(found, labels, values, strict=True):
        assert [uri(topic) for topic, _ in ours] == [model.names[n] for n in numbers]
        squashed = scores if name == "calibrated" else 1 / (1 + np.exp(-3 * scores))
        np.testing.assert_allclose([score for _, score in ours], squashed, rtol=1e-5)
        assert all(0 < score <= 1 for _, score in ours)


def test_all_subjects_of_a_document_are_trained_on(project):
    rows = texts_and_topics(60, seed=4)
    made = project("plain", rows)
    counts = dismec.open_model(made.backend.model_directory).label_counts
    assert counts.sum() == sum(len(topics) for _, topics in rows)


def test_a_batch_is_ranked_at_once_and_as_its_documents_alone(project, monkeypatch):
    made = project("plain", texts_and_topics(60, seed=5))
    batch = documents(made, texts_and_topics(9, seed=6))
    alone = [made.suggest([document]).array.toarray() for document in batch]
    calls = []
    inner = dismec.Model.predict_topk
    monkeypatch.setattr(
        dismec.Model, "predict_topk", lambda *a, **k: (calls.append(1), inner(*a, **k))[1]
    )
    np.testing.assert_array_equal(made.suggest(batch).array.toarray(), np.vstack(alone))
    assert len(calls) == 1


def test_limit_and_texts_without_known_words(project):
    made = project("plain", texts_and_topics(60, seed=7))
    texts = [Document(text) for text in ("egg", "", "unheard of", "tea cup")]
    batch = made.suggest(texts, {"dismec": {"limit": "2"}})
    assert [len(result) for result in batch] == [2, 0, 0, 2]
    assert [len(result) for result in made.suggest(texts[1:3])] == [0, 0]
    assert [len(result) for result in made.suggest(texts, {"dismec": {"limit": "0"}})] == [0] * 4
    assert len(made.suggest([])) == 0


def test_a_subject_that_has_left_the_vocabulary_takes_no_place(project, monkeypatch):
    rows = texts_and_topics(60, seed=8)
    made = project("plain", rows)
    again = project("without-tea")
    Path(again.backend.datadir).mkdir(exist_ok=True)
    made.backend.model_directory.rename(again.backend.model_directory)
    said = []
    monkeypatch.setattr(again.backend, "warning", said.append)
    batch = again.suggest([Document("kettle cup egg")], {"dismec": {"limit": 4}})
    (found,) = suggested(batch, again)
    assert len(found) == 4
    assert "tea" not in dict(found)
    (warning,) = said
    assert "no longer in the vocabulary and not suggested: 1 of the model's" in warning


def test_words_are_those_of_the_analyzer(project):
    class Stems:
        def tokenize_words(self, text):
            return [word.lower()[:3] for word in text.split()]

    made = project("plain")
    made.analyzer_spec, made._analyzer = "stems", Stems()
    made.train(DocumentList(documents(made, texts_and_topics(60, seed=9))))
    terms = dismec.open_model(made.backend.model_directory).vocabulary.terms
    assert {len(term) for term in terms} == {3}
    (found,) = suggested(made.suggest([Document("KETTLES")]), made)
    assert found[0][0] == "tea"


def test_documents_without_text_or_subjects_are_left_out(project):
    rows = [*texts_and_topics(30, seed=10), ("nothing", []), (" ", ["tea"])]
    made = project("plain", rows)
    model = dismec.open_model(made.backend.model_directory)
    assert "nothing" not in list(model.vocabulary.terms)
    with pytest.raises(NotSupportedException, match="both text and subjects"):
        project("plain", rows[-2:])


def test_a_failed_training_leaves_the_model_as_it_was(project):
    made = project("plain", texts_and_topics(30, seed=11))
    before = made.suggest([Document("egg")]).array.toarray()
    few = DocumentList(documents(made, texts_and_topics(3, seed=0)))
    with pytest.raises(OperationFailedException, match="every term was dropped"):
        made.train(few, {"dismec": {"min_df": 50}})
    again = project("plain")
    assert again.is_trained
    np.testing.assert_array_equal(again.suggest([Document("egg")]).array.toarray(), before)


def test_what_an_earlier_training_left_unfinished_is_no_model_and_is_replaced(project):
    first, second = texts_and_topics(30, seed=12), texts_and_topics(40, seed=13)
    made = project("plain", first)
    backend = made.backend
    # As if another training run had been killed just before its model was put in place.
    backend.model_directory.rename(Path(backend.datadir, DismecBackend.UNFINISHED))
    other = project("plain")
    assert not other.is_trained
    with pytest.raises(NotInitializedException, match="not found"):
        other.backend.initialize()
    other.train(DocumentList(documents(other, second)))
    counts = dismec.open_model(other.backend.model_directory).label_counts
    assert counts.sum() == sum(len(topics) for _, topics in second)
    assert {path.name for path in Path(backend.datadir).iterdir()} == {
        DismecBackend.MODEL,
        DismecBackend.TEXTS,
    }


def test_a_project_is_suggested_by_what_it_was_last_trained_on(project):
    made = project("plain", [("apple", ["tea"]), ("pear", ["soup"])])
    assert suggested(made.suggest([Document("apple")]), made)[0][0][0] == "tea"
    made.train(DocumentList(documents(made, [("apple", ["fish"]), ("pear", ["soup"])])))
    assert suggested(made.suggest([Document("apple")]), made)[0][0][0] == "fish"


@pytest.mark.parametrize(
    "config", [{"C": "much"}, {"delta": "-1"}, {"min_df": "0"}, {"ngram": "0"}, {"ngram": "two"}]
)
def test_a_wrong_parameter_is_refused_before_documents_are_read(project, config):
    made = project("plain", **config)
    with pytest.raises(ConfigurationException):
        made.train(DocumentList([]))


def test_without_texts_of_a_run_before_nothing_is_cached(project):
    with pytest.raises(NotInitializedException, match="previous run"):
        project("plain").train("cached")


def test_a_damaged_model_is_said_to_be_one(project):
    made = project("plain", texts_and_topics(30, seed=14))
    (made.backend.model_directory / "manifest.json").write_text("{")
    with pytest.raises(OperationFailedException):
        project("plain").suggest([Document("egg")])


def test_a_server_finds_the_backend(kitchen):
    annif(kitchen, "train", "plain", "train.tsv")
    code = (
        "import annif_dismec\n"
        "app = annif_dismec.create_app('annif.default_config.Config')\n"
        "answer = app.test_client().post('/v1/projects/plain/suggest', data={'text': 'an egg'})\n"
        "print(answer.json()['results'][0]['label'])"
    )
    env = {**os.environ, "ANNIF_PROJECTS": "projects.cfg", "ANNIF_DATADIR": "data"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=kitchen, env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "eggs", done.stderr
