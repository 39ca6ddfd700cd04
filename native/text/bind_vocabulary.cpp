#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "text/document_counter.hpp"
#include "text/lexicon.hpp"

namespace dismec::bind {

namespace {

/// Python strings as UTF-8, in memory that they own.
struct Texts {
  nb::tuple kept;
  std::vector<std::string_view> views;

  /// Raises ValueError(number, reason) at the first item that is not text.
  explicit Texts(const nb::list& texts) : kept(nb::tuple(texts)) {
    views.reserve(kept.size());
    for (const nb::handle text : kept) {
      Py_ssize_t size = 0;
      const char* reason = "not a text";
      if (PyUnicode_Check(text.ptr())) {
        if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) {
          views.emplace_back(utf8, size);
          continue;
        }
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw nb::python_error();
        PyErr_Clear();
        reason = "half of a character (a lone surrogate)";
      }
      raise_at(std::ssize(views), reason);
    }
  }

  std::span<const std::string_view> between(std::size_t begin, std::size_t end) const {
    if (begin > end || end > views.size()) throw std::out_of_range("no such texts");
    return std::span(views).subspan(begin, end - begin);
  }

  /// The number of bytes up to the end of each text, plus one per text, so that empty texts count.
  nb::object ends() const {
    std::vector<std::int64_t> result;
    result.reserve(views.size());
    std::int64_t sum = 0;
    for (const std::string_view text : views)
      result.push_back(sum += static_cast<std::int64_t>(text.size()) + 1);
    return owned(std::move(result));
  }
};

text::TermRules rules_of(std::pair<std::int64_t, std::int64_t> words,
                         std::pair<std::int64_t, std::int64_t> chars, std::int64_t prefix,
                         bool lowercase) {
  for (const auto& [from, to] : {words, chars})
    if (from < 0 || from > to || to > text::kLongestGram || (from == 0) != (to == 0))
      throw std::out_of_range("no such n-grams");
  if (prefix < 0 || prefix > text::kLongestGram) throw std::out_of_range("no such prefix");
  return {words.first, words.second, chars.first, chars.second, prefix, lowercase};
}

struct Lexicon {
  Vector<std::uint8_t> utf8;
  Vector<std::int64_t> offsets;
  text::Lexicon terms;

  Lexicon(std::pair<std::int64_t, std::int64_t> words, std::pair<std::int64_t, std::int64_t> chars,
          std::int64_t prefix, bool lowercase, const Vector<std::uint8_t>& bytes,
          const Vector<std::int64_t>& starts)
      : utf8(bytes),
        offsets(starts),
        terms(rules_of(words, chars, prefix, lowercase), characters(bytes, starts), view(offsets)) {
  }

  static std::span<const char> characters(const Vector<std::uint8_t>& bytes,
                                          const Vector<std::int64_t>& starts) {
    const auto ends = view(starts);
    if (ends.empty() || ends.front() != 0 || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.back() != static_cast<std::int64_t>(bytes.size()) ||
        ends.size() >= std::numeric_limits<std::int32_t>::max())
      throw std::out_of_range("offsets that do not fit the bytes");
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  nb::tuple rows(const Texts& texts, std::size_t begin, std::size_t end, bool sublinear) const {
    const auto wanted = texts.between(begin, end);
    text::CountedRows rows;
    {
      const nb::gil_scoped_release release;
      rows = terms.rows(wanted, sublinear);
    }
    return nb::make_tuple(owned(std::move(rows.sizes)), owned(std::move(rows.features)),
                          owned(std::move(rows.values)));
  }

  nb::object spans(const Texts& texts, std::size_t number) const {
    const std::string_view text = texts.between(number, number + 1)[0];
    std::vector<text::Span> spans;
    {
      const nb::gil_scoped_release release;
      spans = terms.spans(text);
    }
    return owned<std::int64_t>(std::move(spans), 3);
  }
};

void add(text::DocumentCounter& counter, const Texts& texts, std::size_t begin, std::size_t end) {
  const auto wanted = texts.between(begin, end);
  const nb::gil_scoped_release release;
  counter.add(wanted);
}

nb::tuple list(const text::DocumentCounter& counter, std::int64_t least, double most,
               std::optional<std::size_t> size) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max() - 1;
  text::TermList terms;
  {
    const nb::gil_scoped_release release;
    terms = counter.list(least, most, std::min(kMost, size.value_or(kMost)));
  }
  return nb::make_tuple(owned<std::uint8_t>(std::move(terms.bytes)),
                        owned(std::move(terms.starts)));
}

}  // namespace

void vocabulary(nb::module_& m) {
  m.attr("unicode_version") = text::unicode::kVersion;
  m.attr("longest_gram") = text::kLongestGram;
  nb::class_<Texts>(m, "Texts")
      .def(nb::init<const nb::list&>(), "texts"_a)
      .def("ends", &Texts::ends);
  nb::class_<text::DocumentCounter>(m, "DocumentCounter")
      .def(
          "__init__",
          [](text::DocumentCounter* self, std::pair<std::int64_t, std::int64_t> words,
             std::pair<std::int64_t, std::int64_t> chars, std::int64_t prefix, bool lowercase) {
            new (self) text::DocumentCounter(rules_of(words, chars, prefix, lowercase));
          },
          "words"_a, "chars"_a, "prefix"_a, "lowercase"_a)
      .def("add", &add, "texts"_a, "begin"_a, "end"_a)
      .def("prune", &text::DocumentCounter::prune, "most"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("list", &list, "least"_a, "most"_a, "size"_a.none());
  nb::class_<Lexicon>(m, "Lexicon")
      .def(nb::init<std::pair<std::int64_t, std::int64_t>, std::pair<std::int64_t, std::int64_t>,
                    std::int64_t, bool, const Vector<std::uint8_t>&, const Vector<std::int64_t>&>(),
           "words"_a, "chars"_a, "prefix"_a, "lowercase"_a, "utf8"_a, "offsets"_a)
      .def("unsound", [](const Lexicon& self) { return self.terms.unsound(); })
      .def("rows", &Lexicon::rows, "texts"_a, "begin"_a, "end"_a, "sublinear"_a)
      .def("spans", &Lexicon::spans, "texts"_a, "number"_a);
}

}  // namespace dismec::bind
