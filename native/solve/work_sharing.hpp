// Work in pieces → the same work, done by all threads that have nothing else to do.
//
// Which thread does a piece must not matter: pieces depend on the data alone and write to different
// memory, and their results are combined in piece order.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace dismec::solve {

/// The threads of one run. Those without labels help the others until they are called back; no
/// thread is started here.
class WorkSharing {
 public:
  /// Calls work(0), …, work(n − 1) on this thread and on those in `help`, concurrently and in any
  /// order, and returns when all calls are done. If a call throws, rethrows its exception; later
  /// calls may then be skipped.
  template <typename Work>
  void each(std::int64_t n, const Work& work) {
    if (n <= 1) {
      if (n == 1) work(0);
      return;
    }
    Job job(n, &work, [](const void* w, std::int64_t i) { (*static_cast<const Work*>(w))(i); });
    const auto begin = std::chrono::steady_clock::now();
    open(job);
    job.run();
    close(job);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
    nanoseconds_.fetch_add(took.count(), std::memory_order_relaxed);
    if (job.error) std::rethrow_exception(job.error);
  }

  /// Number of threads available to help; it may change at any moment.
  int n_helpers() const { return n_helpers_.load(std::memory_order_relaxed); }
  bool has_helpers() const { return n_helpers() > 0; }

  /// Helps until the number of calls differs from `known`.
  void help(std::uint64_t known) {
    std::unique_lock lock(mutex_);
    n_helpers_.fetch_add(1, std::memory_order_relaxed);
    while (calls_ == known) {
      if (Job* job = next_job()) {
        job->helpers.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        const std::int64_t n_done = job->run();
        lock.lock();
        n_helped_ += n_done;
        // The job may be destroyed as soon as no helper works on it.
        if (job->helpers.fetch_sub(1, std::memory_order_release) == 1) finished_.notify_all();
        continue;
      }
      const std::uint64_t seen = events_.load(std::memory_order_relaxed);
      lock.unlock();
      const bool changed = soon([&] { return events_.load(std::memory_order_relaxed) != seen; });
      lock.lock();
      if (changed || events_.load(std::memory_order_relaxed) != seen) continue;
      ++asleep_;
      wake_.wait(lock, [&] { return events_.load(std::memory_order_relaxed) != seen; });
      --asleep_;
    }
    n_helpers_.fetch_sub(1, std::memory_order_relaxed);
  }

  /// How often helpers have been called back.
  std::uint64_t calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  /// Number of pieces done by helpers.
  std::int64_t n_helped() const {
    const std::lock_guard lock(mutex_);
    return n_helped_;
  }
  /// Seconds spent in `each`, summed over its callers.
  double seconds() const {
    return 1e-9 * static_cast<double>(nanoseconds_.load(std::memory_order_relaxed));
  }

  /// Makes all threads in `help` return once they have finished their current piece.
  void call_back() {
    const std::lock_guard lock(mutex_);
    ++calls_;
    events_.fetch_add(1, std::memory_order_relaxed);
    wake_.notify_all();
  }

 private:
  struct Job {
    Job(std::int64_t pieces, const void* task, void (*function)(const void*, std::int64_t))
        : n(pieces), work(task), call(function) {}

    /// Does pieces until all are taken; returns how many it did.
    std::int64_t run() {
      std::int64_t n_done = 0;
      try {
        for (;; ++n_done) {
          const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
          if (i >= n) break;
          call(work, i);
        }
      } catch (...) {
        next.store(n, std::memory_order_relaxed);
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
      return n_done;
    }

    std::int64_t n;
    const void* work;
    void (*call)(const void*, std::int64_t);
    std::atomic<std::int64_t> next{0};
    std::atomic<int> helpers{0};  // threads working on it; grows only while it is open
    std::mutex mutex;
    std::exception_ptr error;
  };

  void open(Job& job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(&job);
    events_.fetch_add(1, std::memory_order_relaxed);
    if (asleep_ > 0) wake_.notify_all();
  }

  /// Waits until no helper works on the job.
  void close(Job& job) {
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);
    const auto left = [&] { return job.helpers.load(std::memory_order_acquire) == 0; };
    if (left()) return;
    lock.unlock();
    if (soon(left)) return;
    lock.lock();
    finished_.wait(lock, left);
  }

  /// A job with pieces left, in rotation if there are several.
  Job* next_job() {
    for (std::size_t k = 0; k < jobs_.size(); ++k) {
      Job* job = jobs_[++turn_ % jobs_.size()];
      if (job->next.load(std::memory_order_relaxed) < job->n) return job;
    }
    return nullptr;
  }

  /// Spins for about ten microseconds until a condition holds. Falling asleep and being woken takes
  /// longer than most pieces.
  template <typename Condition>
  static bool soon(const Condition& condition) {
    constexpr int kLooks = 64;
    for (int look = 0; look < kLooks; ++look) {
      if (condition()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  mutable std::mutex mutex_;
  std::condition_variable wake_;      // for sleeping helpers
  std::condition_variable finished_;  // for threads waiting for helpers
  std::vector<Job*> jobs_;            // the open ones
  std::size_t turn_ = 0;
  std::uint64_t calls_ = 0;
  std::int64_t n_helped_ = 0;
  std::atomic<std::int64_t> nanoseconds_{0};
  std::atomic<std::uint64_t> events_{0};  // jobs opened, plus calls; changed under the mutex
  std::atomic<int> n_helpers_{0};
  int asleep_ = 0;
};

/// A range cut into pieces of nearly equal size, by its length alone.
class Pieces {
 public:
  Pieces(std::int64_t length, std::int64_t n) : length_(length), n_(n) {}
  std::int64_t n() const { return n_; }
  std::int64_t begin(std::int64_t i) const { return length_ * i / n_; }
  std::int64_t end(std::int64_t i) const { return begin(i + 1); }
  std::int64_t size(std::int64_t i) const { return end(i) - begin(i); }

 private:
  std::int64_t length_, n_;
};

}  // namespace dismec::solve
