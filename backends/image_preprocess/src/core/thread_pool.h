// A fixed number of threads that share out the pictures of a batch.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tritonstack::image {

// Processors that this process may run on, which in a container are fewer than the machine has.
int usable_processors();

// The calling thread is one of the workers, so a pool of one starts no thread at all.
class ThreadPool {
 public:
  // 0: as many as this process may use processors.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // task(index, worker) for every index below count, worker below size(); returns when all are done. Tasks must not
  // throw. One call at a time.
  void for_each(size_t count, const std::function<void(size_t index, size_t worker)>& task);

 private:
  void work(size_t worker);
  void take_tasks(size_t worker);

  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  const std::function<void(size_t, size_t)>* task_ = nullptr;
  size_t next_ = 0;
  size_t count_ = 0;
  size_t busy_ = 0;
  size_t round_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tritonstack::image
