// The fixed-point weights of a batch for the exact kernel. Axes of the same sizes share one table, and tables are kept
// from batch to batch, so a stream of equal pictures computes them once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/filter.h"
#include "core/operation.h"
#include "gpu/kernels.h"

namespace tritonstack::image {

class TapTables {
 public:
  // Forgets the axes of the last batch, not their weights.
  void clear();

  // Outputs begin … begin + count - 1 of a resampling from `in` to `out` pixels; axes are numbered in order of adding.
  void add(const Operation& operation, int in, int out, int begin, int count);

  size_t bytes() const { return bytes_; }
  void write(uint8_t* to) const;

  // The axis with the given number, where the written bytes lie at `base` on the device.
  DeviceTaps at(size_t axis, const uint8_t* base) const;

 private:
  using Key = std::tuple<int, int, int, int>;
  struct Entry {
    Taps<int32_t> taps;
    size_t offset = 0;
    uint64_t batch = 0;  // the last one that used it
  };

  static constexpr size_t kKept = 1024;

  std::map<Key, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> axes_;
  std::vector<Entry*> used_;
  size_t bytes_ = 0;
  uint64_t batch_ = 0;
};

}  // namespace tritonstack::image
