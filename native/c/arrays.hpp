// A file of arrays, as specified in docs/reference/model-format.md → views of its arrays, mapped
// into memory.
#pragma once

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#undef near
#undef far
#undef small
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c/json.hpp"

namespace dismec::c {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

/// The bytes of a file, mapped for the lifetime of this object.
class MappedFile {
 public:
#ifdef _WIN32
  explicit MappedFile(const std::string& path) {
    const HANDLE file = ::CreateFileA(path.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr,
                                      OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    LARGE_INTEGER size{};
    if (file == INVALID_HANDLE_VALUE || !::GetFileSizeEx(file, &size)) fail(path, file);
    size_ = static_cast<std::size_t>(size.QuadPart);
    if (size_ > 0) {
      const HANDLE map = ::CreateFileMappingA(file, nullptr, PAGE_READONLY, 0, 0, nullptr);
      if (map == nullptr) fail(path, file);
      bytes_ = static_cast<const char*>(::MapViewOfFile(map, FILE_MAP_READ, 0, 0, 0));
      const DWORD error = ::GetLastError();
      ::CloseHandle(map);  // the view keeps it
      ::SetLastError(error);
      if (bytes_ == nullptr) fail(path, file);
    }
    ::CloseHandle(file);
  }
#else
  explicit MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat facts{};
    if (file < 0 || ::fstat(file, &facts) != 0) fail(path, file);
    if (!S_ISREG(facts.st_mode)) {
      ::close(file);
      throw std::invalid_argument(path + ": not a file");
    }
    size_ = static_cast<std::size_t>(facts.st_size);
    if (size_ > 0) {
      void* const found = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
      if (found == MAP_FAILED) fail(path, file);
      bytes_ = static_cast<const char*>(found);
    }
    ::close(file);
  }
#endif
  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (bytes_ == nullptr) return;
#ifdef _WIN32
    ::UnmapViewOfFile(bytes_);
#else
    ::munmap(const_cast<char*>(bytes_), size_);
#endif
  }

  std::string_view bytes() const { return {bytes_, size_}; }

 private:
#ifdef _WIN32
  [[noreturn]] static void fail(const std::string& path, HANDLE file) {
    const std::string reason = "Windows error " + std::to_string(::GetLastError());
    if (file != INVALID_HANDLE_VALUE) ::CloseHandle(file);
    throw std::invalid_argument(path + ": " + reason);
  }
#else
  [[noreturn]] static void fail(const std::string& path, int file) {
    const std::string reason = std::strerror(errno);
    if (file >= 0) ::close(file);
    throw std::invalid_argument(path + ": " + reason);
  }
#endif

  const char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

/// The arrays of a file. Throws std::invalid_argument, with the reason but not the path, if they
/// are damaged.
class ArrayFile {
 public:
  explicit ArrayFile(const std::string& path) : file_(path) {
    const std::string_view all = file_.bytes();
    std::uint64_t length = 0;
    if (all.size() < sizeof length) throw std::invalid_argument("the file is cut off");
    std::memcpy(&length, all.data(), sizeof length);
    if (length > all.size() - sizeof length)
      throw std::invalid_argument("the file is cut off within its header");
    header_ = JsonParser::parse(all.substr(sizeof length, length));
    data_ = all.substr(sizeof length + length);
  }

  bool has(std::string_view name) const { return header_.at(name).kind == Json::Kind::object; }
  const std::string& type(std::string_view name) const { return entry(name).at("dtype").text(); }
  std::vector<std::int64_t> shape(std::string_view name) const {
    std::vector<std::int64_t> sizes;
    for (const Json& size : entry(name).at("shape").list()) sizes.push_back(size.integer());
    return sizes;
  }

  /// The numbers of an array, in row-major order.
  template <typename T>
  std::span<const T> get(std::string_view name, std::string_view type_name) const {
    if (type(name) != type_name) throw wrong(name, "has another type");
    const auto& offsets = entry(name).at("data_offsets").list();
    if (offsets.size() != 2) throw wrong(name, "has no place");
    const std::int64_t begin = offsets[0].integer(), end = offsets[1].integer();
    if (begin > end || end > std::ssize(data_)) throw wrong(name, "is cut off");
    std::uint64_t size = sizeof(T);
    for (const std::int64_t n : shape(name))
      if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(n), &size))
        throw wrong(name, "has an impossible shape");
    if (size != static_cast<std::uint64_t>(end - begin))
      throw wrong(name, "has a size that disagrees with its shape");
    const char* const first = data_.data() + begin;
    if (std::bit_cast<std::uintptr_t>(first) % alignof(T) != 0) throw wrong(name, "is not aligned");
    return {reinterpret_cast<const T*>(first), static_cast<std::size_t>(size / sizeof(T))};
  }

 private:
  const Json& entry(std::string_view name) const {
    if (!has(name)) throw wrong(name, "is missing");
    return header_.at(name);
  }
  static std::invalid_argument wrong(std::string_view name, const char* what) {
    return std::invalid_argument("array " + std::string(name) + " " + what);
  }

  MappedFile file_;
  Json header_;
  std::string_view data_;
};

}  // namespace dismec::c
