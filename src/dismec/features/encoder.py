"""Texts → embeddings, by a sentence encoder on this machine: the only place that loads one.

An encoder is a folder of files, or a name in the local cache. Nothing is downloaded, and pickled
weights are not loaded. A model states the checksum of its encoder's files, so that texts are never
encoded by another one.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from dismec.data.counts import counted
from dismec.data.files import StrPath, whole_file
from dismec.errors import ModelError

Floats = npt.NDArray[np.float32]

# Files that embeddings depend on; others, such as a README, may differ between copies.
_FILES = (
    *("modules.json", "config*.json", "sentence_*.json"),
    *("*token*.json", "vocab*", "merges.txt", "*.model"),
)
_WEIGHTS, _PICKLED = "*.safetensors", "*.bin"
_TEXTS = 2048  # encoded at a time: a killed run loses at most these
_LOG_SECONDS = 10.0
_lock = Lock()  # tokenizers are not safe to use in several threads


class Encoder:
    """A sentence encoder, identified by its files; it is loaded when it is first used.

    Methods raise `ModelError` if it is missing, is another one, or cannot be loaded.
    """

    def __init__(self, name: str, sha256: str) -> None:
        self.name = name  # in the cache, or the path of its folder
        self.sha256 = sha256  # of its files
        self._kept: Path | None = None
        self._log: Callable[[str], None] | None = None
        self._done, self._logged = 0, time.monotonic()

    @classmethod
    def find(
        cls,
        given: StrPath,
        kept: Path | None = None,
        log: Callable[[str], None] | None = None,
    ) -> Encoder:
        """Return the encoder with this name or path, loaded.

        Embeddings are kept in the folder `kept`, if it is given, and taken from there if the same
        texts were encoded before. `log` is called with a line of text from time to time.
        """
        name = str(given)
        if Path(name).is_dir():
            name = str(Path(name).absolute())
        found = cls(name, _checksum(_folder(name)))
        found._kept, found._log = kept, log
        _ = found.width
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self.name, self.sha256)  # without weights: another process loads its own

    def to_dict(self) -> dict[str, str]:
        """Return what a manifest says about the encoder."""
        return {"name": self.name, "sha256": self.sha256}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Encoder:
        """Invert `to_dict`."""
        if d.keys() != {"name", "sha256"} or not all(isinstance(v, str) for v in d.values()):
            raise ModelError("encoder: expected its name and sha256")
        return cls(d["name"], d["sha256"])

    @property
    def width(self) -> int:
        """Number of dimensions of an embedding."""
        return int(self._encoded([""]).shape[1])

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the embeddings of texts, float32 of shape (n_texts, width)."""
        if not len(texts):
            return self._encoded([""])[:0]
        parts = [self._known(texts[i : i + _TEXTS]) for i in range(0, len(texts), _TEXTS)]
        return np.concatenate(parts)

    def _known(self, texts: Sequence[str]) -> Floats:
        """Return the embeddings of texts that may have been encoded before."""
        if self._kept is None:
            return self._encoded(texts)
        key = hashlib.sha256(self.sha256.encode())
        for text in texts:
            key.update(b"%d " % len(text) + text.encode())
        file = self._kept / f"{key.hexdigest()}.npy"
        with suppress(OSError, ValueError):
            known: Floats = np.load(file, allow_pickle=False)
            if known.dtype == np.float32 and known.shape[:1] == (len(texts),):
                return known
        found = self._encoded(texts)
        self._done += len(texts)
        if self._log and time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            self._log(f"{counted(self._done, 'text')} encoded")
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file, follow=False) as out:
            np.save(out, found)
        return found

    def _encoded(self, texts: Sequence[str]) -> Floats:
        with _lock:
            found = _loaded(self.name, self.sha256).encode(list(texts), show_progress_bar=False)
        return np.asarray(found, np.float32)


@cache
def _loaded(name: str, sha256: str) -> Any:
    """Return the encoder of sentence-transformers."""
    folder = _folder(name)
    if _checksum(folder) != sha256:
        raise ModelError(f"the encoder {name} differs from the one that the model was trained with")
    from sentence_transformers import SentenceTransformer

    try:
        with redirect_stderr(io.StringIO()):  # progress of loading a file
            return SentenceTransformer(str(folder), local_files_only=True)
    except Exception as error:  # of any library that reads one of its files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{folder}: cannot be loaded as a sentence encoder: {reason}") from None


def _folder(name: str) -> Path:
    """Return the folder of an encoder; raise `ModelError` if it is not on this machine."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the packages are first imported
    try:
        import sentence_transformers  # noqa: F401  it is needed in any case
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelError(
            f"the encoder {name} needs sentence-transformers: pip install 'dismec[encoder]'"
        ) from None
    if Path(name).is_dir():
        return Path(name)
    for repository in (name, f"sentence-transformers/{name}"):
        # The library has errors of many kinds for names that it does not accept or does not know.
        with suppress(Exception):
            return Path(snapshot_download(repository, local_files_only=True))
    raise ModelError(
        f"the encoder {name} is not on this machine: expected a folder, or a name in the local "
        "cache of Hugging Face; nothing is downloaded"
    )


def _checksum(folder: Path) -> str:
    """Return the SHA-256 of the files that embeddings depend on."""
    folders = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    folders = [place for place in folders if place.name not in ("onnx", "openvino")]
    files = [file for place in folders for kind in _FILES for file in place.glob(kind)]
    for place in folders:
        weights = sorted(place.glob(_WEIGHTS))
        if not weights and any(place.glob(_PICKLED)):
            raise ModelError(f"{place}: pickled weights; expected a .safetensors file")
        files += weights
    if not files:
        raise ModelError(f"{folder}: not a sentence encoder")
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        digest.update(f"{file.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()
