// A size → a zeroed table with fast random access.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace dismec {

/// Numbers, initially 0, in huge pages where the system offers them and the array fills at least
/// one: with small pages, most of the cost of a lookup is the TLB miss.
template <typename T>
class HugeArray {
 public:
  explicit HugeArray(std::int64_t size) {
    constexpr std::size_t kPage = std::size_t{1} << 21;
    const std::size_t wanted = static_cast<std::size_t>(size) * sizeof(T);
    const std::size_t unit = wanted >= kPage ? kPage : 64;
    const std::size_t bytes = (wanted / unit + 1) * unit;
#if defined(_WIN32)
    data_.reset(static_cast<T*>(_aligned_malloc(bytes, unit)));
#else
    data_.reset(static_cast<T*>(std::aligned_alloc(unit, bytes)));
#endif
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (unit == kPage) madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
    std::memset(data_.get(), 0, wanted);
  }

  const T& operator[](std::int64_t i) const { return data_.get()[i]; }
  T& operator[](std::int64_t i) { return data_.get()[i]; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const {
#if defined(_WIN32)
      _aligned_free(p);
#else
      std::free(p);
#endif
    }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace dismec
