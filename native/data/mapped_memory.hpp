// Watched memory of mapped files: bytes that can no longer be read turn into zeros, and the file is
// marked.
//
// When a file is truncated, the memory beyond its new end is gone, and a process that touches it is
// killed by SIGBUS. Here the thread continues with zeros instead. The file is marked before the
// zeros appear, so that a reader can check afterwards whether it read what the file held. Hence
// only memory whose readers check the mark may be watched, and code that reads it must stay within
// bounds even when values that it has checked before turn into zeros.
//
// Memory that is not watched behaves as before: the signal is passed on.
#pragma once

#ifdef _WIN32

#include <cstddef>

namespace dismec::data {

/// Windows does not truncate files that are mapped, so there is nothing to watch.
class Watch {
 public:
  Watch(const void*, std::size_t) {}

  bool lost() const { return false; }
  void stop() {}
};

}  // namespace dismec::data

#else

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace dismec::data {

/// A range of memory. Ranges are kept in a list that only grows, and are reused: a signal handler
/// may traverse it at any moment, and cannot wait for a lock.
struct Watched {
  std::atomic<std::uint32_t> version{0};  // odd while the range is being changed
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> lost{false};
  bool used = false;  // guarded by the lock
  Watched* next = nullptr;

  void set(std::uintptr_t from, std::uintptr_t to) {
    version.fetch_add(1);
    begin.store(from);
    end.store(to);
    lost.store(false);
    version.fetch_add(1);
  }

  /// The end of the range if it contains an address, else 0.
  std::uintptr_t end_around(std::uintptr_t address) const {
    for (;;) {
      const std::uint32_t before = version.load();
      const std::uintptr_t from = begin.load(), to = end.load();
      if (before % 2 == 0 && version.load() == before)
        return address >= from && address < to ? to : 0;
      if (before % 2 != 0) return 0;  // a range that is being changed is not in use
    }
  }
};

struct WatchList {
  std::atomic<Watched*> first{nullptr};
  std::mutex lock;
  bool installed = false;
  std::uintptr_t page = 0;
  struct sigaction before = {};
};

/// Never destroyed: threads may still run when the process ends.
inline WatchList& watch_list() {
  static auto* const list = new WatchList;
  return *list;
}

/// Maps zeros over what can no longer be read, from the page of `address` on.
inline bool replace_lost(std::uintptr_t address) {
  const WatchList& list = watch_list();
  for (Watched* range = list.first.load(); range != nullptr; range = range->next) {
    const std::uintptr_t end = range->end_around(address);
    if (end == 0) continue;
    range->lost.store(true);
    const std::uintptr_t from = address & ~(list.page - 1);
    const std::uintptr_t size = ((end - from + list.page - 1) / list.page) * list.page;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    void* const wanted = reinterpret_cast<void*>(from);
    return mmap(wanted, size, PROT_READ, flags, -1, 0) == wanted;
  }
  return false;
}

inline void on_bus_error(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const bool by_kernel = info->si_code > 0;
  if (by_kernel && replace_lost(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    errno = error;
    return;
  }
  const struct sigaction& before = watch_list().before;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    signal(number, SIG_DFL);  // the access is retried, and ends the process
    if (!by_kernel) raise(number);
  }
  errno = error;
}

/// Watches a range of memory, a mapped file from its first byte, until `stop`.
class Watch {
 public:
  Watch(const void* data, std::size_t size) {
    WatchList& list = watch_list();
    const std::lock_guard guard(list.lock);
    install(list);
    for (range_ = list.first.load(); range_ != nullptr && range_->used;) range_ = range_->next;
    if (range_ == nullptr) {
      range_ = new Watched;
      range_->next = list.first.load();
      list.first.store(range_);
    }
    range_->used = true;
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    range_->set(begin, begin + size);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { stop(); }

  /// Whether some of the memory was read after it was gone.
  bool lost() const { return range_ != nullptr && range_->lost.load(); }

  /// Call this before unmapping the memory.
  void stop() {
    if (range_ == nullptr) return;
    const std::lock_guard guard(watch_list().lock);
    range_->set(0, 0);
    range_->used = false;
    range_ = nullptr;
  }

 private:
  static void install(WatchList& list) {
    if (list.installed) return;
    list.page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, nullptr, &list.before);  // before the handler can be called
    sigaction(SIGBUS, &action, nullptr);
    list.installed = true;
  }

  Watched* range_ = nullptr;
};

}  // namespace dismec::data

#endif
