"""Text → term frequencies: which terms are features, and how often each occurs in a row.

A word is a run of at least two letters, digits and underscores, as in scikit-learn, together with
their combining marks. In scripts written without spaces (Han, kana, Thai, Lao, Khmer, Myanmar),
every pair of adjacent characters is a word, and so is a single character on its own. Words longer
than 255 bytes are skipped. Character classes and lowercase mappings come from tables of this
package, not from Python's, so a vocabulary finds the same features in a text wherever it is used.

A term is one or more consecutive words, joined by single spaces, or "#" followed by consecutive
characters of one word that is padded with a space on both sides. The prefix of a word begins with
the space before it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dismec.cpu import in_threads, kernels, thread_count
from dismec.data.container import ContainerError
from dismec.data.counts import counted
from dismec.data.matrices import csr_on, refuse_mask, row_pointers
from dismec.data.mixed import MixedRows, mixed_rows
from dismec.data.names import Names, unpack_names
from dismec.errors import DataError, ModelError, located

if TYPE_CHECKING:
    from dismec.features.encoder import Encoder

T = TypeVar("T")

_CHUNK = 1 << 18  # bytes of text per thread and step: their terms stay in the cache
_WINDOW = 1 << 26  # bytes of text between two checks of the number of terms


class TextRows(sp.csr_array):
    """Rows whose columns are the terms of a vocabulary: the input of a text model.

    `Vocabulary.rows` returns them, and slices keep the class. A text model rejects other matrices
    because it cannot know what their columns mean; ``TextRows(X)`` declares that they are its own
    terms, in order. Stacked rows need this too, because `scipy.sparse.vstack` returns a plain
    matrix.

    Examples
    --------
    >>> from dismec import DiSMECTextClassifier, TextRows
    >>> texts = ["boil the egg", "fry the egg", "bake the bread", "slice the bread"]
    >>> model = DiSMECTextClassifier().fit(texts, ["egg", "egg", "bread", "bread"]).model_
    >>> X = model.vocabulary.rows(["a fried egg"])
    >>> isinstance(X, TextRows)
    True
    >>> model.predict_topk(TextRows(X.toarray()), k=1)[0].tolist()
    [[1]]
    """

    def __init__(self, arg1: Any, *args: Any, **kwargs: Any) -> None:
        refuse_mask(arg1, "X")
        super().__init__(arg1, *args, **kwargs)


@dataclass(frozen=True)
class TextParams:
    """Which terms of a text are features, and how their values are computed.

    Attributes
    ----------
    word_ngrams : tuple of int, default=(1, 1)
        Minimum and maximum number of words in a term; (0, 0) for no such terms. Pairs of words help
        with short texts if there are many, and make a model several times as large.
    char_ngrams : tuple of int, default=(0, 0)
        Minimum and maximum number of characters in a character n-gram, counting the space before
        and after a word; (0, 0) for no such terms. A shorter word is one term. (3, 5) in addition
        to words helps with short texts, at several times the size.
    prefix : int, default=0
        Number of characters at the beginning of a longer word that are a term, too; 0 for none. 5
        relates the forms of a word, at a fraction of the cost of character n-grams.
    lowercase : bool, default=True
        Whether words are converted to lower case.
    min_df : int, default=1
        Terms that occur in fewer rows are dropped. Rare terms are useful for rare labels; with
        millions of rows, 2 or 3 keeps the vocabulary small.
    max_df : float, default=1.0
        Terms that occur in more than this share of the rows are dropped.
    max_features : int, default=None
        Maximum number of terms. Those that occur in the most rows are kept; ties go to the terms
        that sort first by bytes.
    sublinear : bool, default=True
        Whether the value of a term is 1 + ln(count) instead of its count.

    Raises
    ------
    ValueError
        For a value of the wrong kind or out of range.

    Examples
    --------
    >>> from dismec import TextParams
    >>> TextParams(char_ngrams=(3, 5), min_df=2).char_ngrams
    (3, 5)
    """

    word_ngrams: tuple[int, int] = (1, 1)
    char_ngrams: tuple[int, int] = (0, 0)
    prefix: int = 0
    lowercase: bool = True
    min_df: int = 1
    max_df: float = 1.0
    max_features: int | None = None
    sublinear: bool = True

    def __post_init__(self) -> None:
        for name in ("word_ngrams", "char_ngrams"):
            object.__setattr__(self, name, _lengths(name, getattr(self, name)))
        object.__setattr__(self, "prefix", _prefix(self.prefix))
        if self.word_ngrams == self.char_ngrams == (0, 0) and not self.prefix:
            raise ValueError("word_ngrams and char_ngrams are both off: there would be no terms")
        for name in ("lowercase", "sublinear"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected True or False")
            object.__setattr__(self, name, bool(getattr(self, name)))
        object.__setattr__(self, "min_df", _positive("min_df", self.min_df))
        if self.max_features is not None:
            object.__setattr__(self, "max_features", _positive("max_features", self.max_features))
        try:
            share = float(self.max_df)
        except (TypeError, ValueError, OverflowError):
            share = np.nan
        if isinstance(self.max_df, str | bool) or not 0 < share <= 1:
            raise ValueError(f"max_df is {self.max_df!r}; expected a share above 0 and at most 1")
        object.__setattr__(self, "max_df", share)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as a dict that JSON can hold.

        Returns
        -------
        dict
            The parameters by name.
        """
        return asdict(self) | {
            "word_ngrams": list(self.word_ngrams),
            "char_ngrams": list(self.char_ngrams),
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TextParams:
        """Make parameters from the dict that `to_dict` returns.

        Parameters
        ----------
        d : mapping of str to value
            The parameters by name; all of them.

        Returns
        -------
        TextParams
            The parameters.

        Raises
        ------
        ModelError
            If an entry is missing or unknown, or a value is out of range.
        """
        for name in d:
            if name not in cls.__dataclass_fields__:
                raise ModelError(f"text: unknown entry {name!r}")
        for name in cls.__dataclass_fields__:
            if name not in d:
                raise ModelError(f"text: {name!r} is missing")
        with located("text", ModelError, ValueError):
            return cls(**d)


class VocabularyBuilder:
    """Counts in how many rows each term occurs, one batch of rows at a time.

    The vocabulary depends only on the rows and their order, not on the batches or the number of
    threads; if `undercount` is 0 at the end, it does not depend on their order either.

    After every 64 MB of text, if there are more than `max_terms` terms, the least frequent ones are
    dropped until at most half of `max_terms` remain, and `undercount` grows by the row count of the
    most frequent dropped term. The count of a term is therefore at most `undercount` too low and
    never too high, and a term in at least `min_df` + `undercount` rows is never missed. A million
    terms take about 80 MB.
    """

    def __init__(
        self,
        params: TextParams | None = None,
        *,
        threads: int | None = None,
        max_terms: int = 50_000_000,
    ) -> None:
        self.params = params or TextParams()
        self.n_rows = 0
        self.undercount = 0
        self._threads = thread_count(threads)
        self._max_terms = _positive("max_terms", max_terms)
        self._counter = kernels.DocumentCounter(*_rules(self.params))
        self._n_bytes = 0

    def add(self, texts: Sequence[str]) -> None:
        """Count the terms of more rows; if one is not text, nothing in the batch is counted."""
        native, ends = _native_texts(texts)
        windows = np.diff((self._n_bytes + ends) // _WINDOW, prepend=self._n_bytes // _WINDOW)
        begin = 0
        for full in np.flatnonzero(windows) + 1:
            self._add_between(native, ends, begin, int(full))
            self.undercount += self._counter.prune(self._max_terms)
            begin = int(full)
        self._add_between(native, ends, begin, len(ends))
        self.n_rows += len(ends)
        self._n_bytes += int(ends[-1]) if len(ends) else 0

    def _add_between(
        self, texts: kernels.Texts, ends: npt.NDArray[np.int64], begin: int, end: int
    ) -> None:
        _in_chunks(lambda a, b: self._counter.add(texts, a, b), ends, begin, end, self._threads)

    def finish(self, encoder: Encoder | None = None) -> Vocabulary:
        """Return the vocabulary of the terms to keep; more rows may be added afterwards."""
        params = self.params
        arrays = self._counter.list(params.min_df, params.max_df * self.n_rows, params.max_features)
        if len(arrays[1]) == 1:
            raise DataError(
                f"{counted(self.n_rows, 'row')} of text: every term was dropped; "
                f"lower min_df (now {params.min_df}) or raise max_df (now {params.max_df:g})"
                if params.min_df > 1 or params.max_df < 1
                else f"{counted(self.n_rows, 'row')} of text: no row has a word of two letters "
                "or more"
            )
        return Vocabulary(params, *arrays, encoder)


class Vocabulary:
    """An immutable mapping from terms to features; see `VocabularyBuilder` and `from_arrays`.

    The `terms` are in feature order: by decreasing number of rows, ties in byte order. With an
    `encoder`, rows also have its embeddings as dense features.
    """

    def __init__(
        self,
        params: TextParams,
        utf8: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.int64],
        encoder: Encoder | None = None,
    ) -> None:
        self.params = params
        self.encoder = encoder
        self.terms: Sequence[str] = Names(utf8, offsets)
        self._utf8, self._offsets = utf8, offsets
        self._lexicon = kernels.Lexicon(*_rules(params), utf8, offsets)

    def __len__(self) -> int:
        return len(self.terms)

    def __reduce__(self) -> tuple[Any, ...]:
        # The lexicon is native and is rebuilt from the terms.
        terms = np.array(self._utf8), np.array(self._offsets)
        return Vocabulary, (self.params, *terms, self.encoder)

    def rows(self, texts: Sequence[str], *, threads: int | None = None) -> TextRows | MixedRows:
        """Turn texts into rows: `counts`, with the embeddings of an encoder beside them."""
        rows = self.counts(texts, threads=threads)
        return rows if self.encoder is None else mixed_rows(rows, self.encoder.encode(texts))

    def counts(self, texts: Sequence[str], *, threads: int | None = None) -> TextRows:
        """Count each term in each text; a text without known terms has no entries.

        The result is canonical float32 (n_texts, n_terms): counts, or 1 + ln(count) if
        ``sublinear``. `dismec.features.transform.Transform` applies idf and normalization. The
        number of threads does not change the result.
        """
        native, ends = _native_texts(texts)
        sublinear = self.params.sublinear

        def count(begin: int, end: int) -> tuple[npt.NDArray[Any], ...]:
            return self._lexicon.rows(native, begin, end, sublinear)

        parts = _in_chunks(count, ends, 0, len(ends), thread_count(threads))
        sizes, features, values = (
            np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
            for arrays in zip(*parts, strict=True)
        )
        shape = (len(ends), len(self))
        indptr = row_pointers([sizes])
        rows = csr_on(values, features, indptr, shape, canonical=True, kind=TextRows)
        return cast(TextRows, rows)

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return the features found in a text: (feature, begin, end) for each occurrence.

        ``text[begin:end]`` is the text read as the term. Occurrences are sorted by where they
        begin.
        """
        native, _ = _native_texts([text])
        return [(f, begin, end) for f, begin, end in self._lexicon.spans(native, 0).tolist()]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the terms for a file: concatenated UTF-8, and the offsets of the terms."""
        return {"terms": self._utf8, "term_offsets": self._offsets}

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, npt.NDArray[Any]],
        params: TextParams,
        encoder: Encoder | None = None,
    ) -> Vocabulary:
        """Invert `to_arrays`; the arrays are used in place, not copied."""
        try:
            utf8, offsets = arrays["terms"], arrays["term_offsets"]
        except KeyError as error:
            raise ModelError(f"vocabulary: the array {error} is missing") from None
        try:
            terms = unpack_names(utf8, offsets)
        except ContainerError:
            raise ModelError("vocabulary: the terms are not UTF-8 text with offsets") from None
        if not 0 < len(terms) <= (params.max_features or np.iinfo(np.int32).max - 1):
            raise ModelError(f"vocabulary: {len(terms)} is not a valid number of terms")
        found = cls(params, np.ascontiguousarray(utf8), np.ascontiguousarray(offsets), encoder)
        if (unsound := found._lexicon.unsound()) is not None:
            raise ModelError(
                f"vocabulary: term {unsound}, {terms[unsound]!r}, occurs twice or does not match "
                "the parameters"
            )
        return found


def _lengths(name: str, value: Any) -> tuple[int, int]:
    most = kernels.longest_gram
    try:
        least, greatest = (operator.index(length) for length in value)
    except (TypeError, ValueError):
        least, greatest = -1, -1
    if (least, greatest) != (0, 0) and not 1 <= least <= greatest <= most:
        raise ValueError(
            f"{name} is {value!r}; expected a minimum and a maximum length, from 1 to {most}, "
            "or (0, 0) for none"
        )
    return least, greatest


def _prefix(value: Any) -> int:
    try:
        length = operator.index(value)
    except TypeError:
        length = -1
    if isinstance(value, bool) or not 0 <= length <= kernels.longest_gram:
        raise ValueError(f"prefix is {value!r}; expected 0 to {kernels.longest_gram} characters")
    return length


def _positive(name: str, value: Any) -> int:
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if not 0 < number < 2**63:
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least 1")
    return number


def _rules(params: TextParams) -> tuple[tuple[int, int], tuple[int, int], int, bool]:
    return params.word_ngrams, params.char_ngrams, params.prefix, params.lowercase


def _native_texts(texts: Sequence[str]) -> tuple[kernels.Texts, npt.NDArray[np.int64]]:
    """Return the texts for the kernels, and the number of bytes up to the end of each text."""
    if isinstance(texts, str):
        raise DataError("expected a list of texts, not a single text")
    try:
        native = kernels.Texts(list(texts))
    except ValueError as error:
        row, reason = error.args
        raise DataError(f"row index {row}: {reason}") from None
    return native, native.ends()


def _in_chunks(
    work: Callable[[int, int], T], ends: npt.NDArray[np.int64], begin: int, end: int, threads: int
) -> list[T]:
    """Call ``work(begin, end)`` for chunks of rows, in as many threads as are worthwhile."""
    cuts = np.flatnonzero(np.diff(ends[begin:end] // _CHUNK)) + begin + 1
    chunks = list(pairwise([begin, *cuts.tolist(), end]))
    return in_threads(lambda chunk: work(*chunk), chunks, min(threads, len(chunks)))
