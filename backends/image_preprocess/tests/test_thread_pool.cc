#include <atomic>
#include <vector>

#include "catch.h"
#include "core/thread_pool.h"

using tritonstack::image::ThreadPool;

TEST_CASE("every task runs once, on a worker that exists") {
  for (const int threads : {0, 1, 2, 5}) {
    ThreadPool pool(threads);
    REQUIRE(pool.size() >= 1);
    for (const size_t count : {0, 1, 2, 7, 300}) {
      std::vector<std::atomic<int>> runs(count);
      std::atomic<bool> valid{true};
      pool.for_each(count, [&](size_t index, size_t worker) {
        ++runs[index];
        if (worker >= static_cast<size_t>(pool.size())) valid = false;
      });
      REQUIRE(valid);
      for (const auto& run : runs) REQUIRE(run == 1);
    }
  }
}
