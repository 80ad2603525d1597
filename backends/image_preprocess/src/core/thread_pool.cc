#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>

namespace tritonstack::image {
int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads) {
  const int wanted = threads == 0 ? usable_processors() : threads;
  threads_.reserve(static_cast<size_t>(wanted - 1));
  try {
    for (int i = 1; i < wanted; ++i) threads_.emplace_back([this, i] { work(static_cast<size_t>(i)); });
  } catch (...) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::for_each(size_t count, const std::function<void(size_t, size_t)>& task) {
  if (threads_.empty() || count <= 1) {
    for (size_t i = 0; i < count; ++i) task(i, 0);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    task_ = &task;
    next_ = 0;
    count_ = count;
    busy_ = threads_.size();
    ++round_;
  }
  start_.notify_all();
  take_tasks(0);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  task_ = nullptr;
}

void ThreadPool::take_tasks(size_t worker) {
  for (;;) {
    size_t index = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (next_ == count_) return;
      index = next_++;
    }
    (*task_)(index, worker);
  }
}

void ThreadPool::work(size_t worker) {
  size_t seen = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    take_tasks(worker);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --busy_;
    }
    done_.notify_one();
  }
}

}  // namespace tritonstack::image
