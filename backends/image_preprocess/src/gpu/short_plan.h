// Lays out a batch for the kernel of short_kernel.cu: tiles, and the tables of the axes. Axes of the same sizes share one
// table, and tables are kept from batch to batch, so a stream of equal pictures computes them once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/operation.h"
#include "core/short_tables.h"
#include "gpu/kernels.h"

namespace tritonstack::image {

class ShortPlan {
 public:
  explicit ShortPlan(const FusedOperation& operation) : operation_(operation) {}

  // Whether this kind of output is made by the short kernel at all: elements of at most 16 bits, not bit for bit Pillow's.
  static bool serves(const FusedOperation& operation, bool exact);

  void clear();

  // Adds the tiles of a picture and fills in its `short_form`; false, with nothing added, where a window is too wide for the
  // kernel. `number` is the picture's place in the array given to the launch.
  bool add(FusedImage& image, int number);

  const std::vector<Tile>& tiles() const { return tiles_; }
  size_t shared_bytes() const { return shared_bytes_; }

  size_t table_bytes() const { return table_bytes_; }
  void write_tables(uint8_t* to) const;
  // Points a picture's `short_form` to its tables, which lie at `base` on the device.
  void place(FusedImage& image, const uint8_t* base) const;

 private:
  struct Axis {
    RowProgram rows;
    ColumnTable columns;
    std::vector<uint8_t> bytes;
    size_t second = 0;  // where the second part of the bytes begins
    size_t offset = 0;
    uint64_t batch = 0;  // the last one that used it
  };
  using Key = std::tuple<bool, int, int, int, int>;
  static constexpr size_t kKept = 2048;

  Axis& axis(bool rows, int in, int out, int begin, int count);
  void use(Axis& axis);

  FusedOperation operation_;
  std::map<Key, std::unique_ptr<Axis>> axes_;
  std::vector<Axis*> used_;
  std::vector<Tile> tiles_;
  size_t table_bytes_ = 0;
  size_t shared_bytes_ = 0;
  uint64_t batch_ = 0;
};

}  // namespace tritonstack::image
