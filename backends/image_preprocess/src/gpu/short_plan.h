// Lays out a batch for the kernel of short_kernel.cu, above all the tables of the axes. Axes of the same sizes share one table,
// and tables are kept from batch to batch, so a stream of equal pictures computes them once.
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

  // Adds a picture and fills in its `short_form` but for the tables' places; false, with nothing added, where a window is
  // too wide for the kernel or the picture covers nothing.
  bool add(FusedImage& image);

  // The most tiles that a picture has, and the shared memory that one of them needs.
  int tiles() const { return tiles_; }
  size_t shared_bytes() const { return shared_bytes_; }

  size_t table_bytes() const { return table_bytes_; }
  void write_tables(uint8_t* to) const;
  // Points a picture's `short_form` to its tables, which lie at `base` on the device.
  void place(FusedImage& image, const uint8_t* base) const;

 private:
  // A table as bytes, and what else is known of it.
  struct Axis {
    std::vector<uint8_t> bytes;
    std::vector<int32_t> ends;  // rows: RowProgram::ends
    int step_stride = 0;
    size_t weights_at = 0;  // columns: where the parts of the bytes begin; strips come first
    size_t offsets_at = 0;
    int pairs = 0;
    int strip_count = 0;  // 0: a window is too wide
    int strip_columns = 0;
    int words = 0;  // of the widest strip
    int bank_step = 0;
    size_t offset = 0;
    uint64_t batch = 0;  // the last one that used it
  };
  using Key = std::tuple<bool, int, int, int, int>;
  static constexpr size_t kKept = 2048;

  Axis& rows_of(const FusedImage& image);
  Axis& columns_of(const FusedImage& image);
  void use(Axis& axis);

  FusedOperation operation_;
  std::map<Key, std::unique_ptr<Axis>> axes_;
  std::vector<Axis*> used_;
  int tiles_ = 0;
  size_t table_bytes_ = 0;
  size_t shared_bytes_ = 0;
  uint64_t batch_ = 0;
};

}  // namespace tritonstack::image
