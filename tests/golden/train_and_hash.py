"""Trains small models and prints the SHA-256 of their weight files, and of what they predict."""

import hashlib
import json
import sys
from pathlib import Path

from dismec import TextParams, TrainingParams, generate, train, train_text

folder = Path(sys.argv[1])
(X, Y, _), (test, _, _) = generate(rows=400, features=300, labels=60, seed=7)
lines = [
    {
        "text": " ".join(f"w{f}" for f in X.indices[X.indptr[i] : X.indptr[i + 1]]),
        "labels": [f"l{y}" for y in Y.indices[Y.indptr[i] : Y.indptr[i + 1]]],
    }
    for i in range(X.shape[0])
]
(folder / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
counts = TextParams(sublinear=False)  # no logarithms, whose last bits are the C library's business
train(X, Y, folder / "l2")
train(X, Y, folder / "l1", TrainingParams(penalty="l1"))
train(X, Y, folder / "int8", TrainingParams(precision="float8", positive_weight=2.0, delta=0.05))
model = train_text(folder / "texts.jsonl", folder / "text", TrainingParams(tfidf=False), counts)


def digest(*contents: bytes) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()


rows = digest(X.indptr.tobytes(), X.indices.tobytes(), X.data.tobytes(), Y.indices.tobytes())
found = {
    f"{path.parent.name}/{path.name}": digest(path.read_bytes())
    for path in sorted(folder.glob("*/*.safetensors"))
}
texts = [line["text"] for line in lines]
found["predictions"] = digest(
    *(a.tobytes() for a in model.predict_topk(model.vocabulary.rows(texts)))
)
sys.stdout.write(json.dumps({"data": rows, "bytes": found}, indent=1) + "\n")
