#include "gpu/short_plan.h"

#include <algorithm>
#include <cstring>

namespace tritonstack::image {
namespace {

constexpr int kBankRow = 128;  // bytes of shared memory that all banks serve at a time

size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

template <typename Item>
size_t append(std::vector<uint8_t>& bytes, const std::vector<Item>& items) {
  const size_t begin = aligned(bytes.size());
  bytes.resize(aligned(begin + items.size() * sizeof(Item)));
  std::memcpy(bytes.data() + begin, items.data(), items.size() * sizeof(Item));
  return begin;
}

// Source columns under the outputs [from, to) of a table, from a pixel on at which 16 bytes begin if they do in column 0.
struct Span {
  int first = 0;
  int end = 0;

  int words() const { return ((end - first) * kChannels + 3) / 4; }
};

Span span_of(const ColumnTable& table, int from, int to) {
  if (from >= to) return {};
  return {table.firsts[static_cast<size_t>(from)] / 16 * 16,
          *std::max_element(table.ends.begin() + from, table.ends.begin() + to)};
}

}  // namespace

bool ShortPlan::serves(const FusedOperation& operation, bool exact) {
  return !exact && operation.element != ElementType::f32;
}

void ShortPlan::clear() {
  tiles_.clear();
  used_.clear();
  table_bytes_ = 0;
  shared_bytes_ = 0;
  ++batch_;
  if (axes_.size() > kKept) {
    // Of sizes that vary without end only the latest are kept.
    for (auto entry = axes_.begin(); entry != axes_.end();) {
      entry = entry->second->batch + 8 < batch_ ? axes_.erase(entry) : std::next(entry);
    }
  }
}

ShortPlan::Axis& ShortPlan::axis(bool rows, int in, int out, int begin, int count) {
  std::unique_ptr<Axis>& entry = axes_[{rows, in, out, begin, count}];
  if (entry == nullptr) {
    auto fresh = std::make_unique<Axis>();
    if (rows) {
      fresh->rows = make_row_program(operation_.interpolation, operation_.antialias, in, out, begin, count);
      append(fresh->bytes, fresh->rows.steps);
      fresh->second = append(fresh->bytes, fresh->rows.starts);
    } else {
      fresh->columns = make_column_table(operation_.interpolation, operation_.antialias, in, out, begin, count);
      append(fresh->bytes, fresh->columns.weights);
      fresh->second = append(fresh->bytes, fresh->columns.firsts);
    }
    entry = std::move(fresh);
  }
  return *entry;
}

void ShortPlan::use(Axis& axis) {
  if (axis.batch == batch_) return;
  axis.batch = batch_;
  axis.offset = table_bytes_;
  table_bytes_ += aligned(axis.bytes.size());
  used_.push_back(&axis);
}

bool ShortPlan::add(FusedImage& image, int number) {
  const int height = image.covered_bottom - image.covered_top;
  const int width = image.covered_right - image.covered_left;
  if (height <= 0 || width <= 0) return false;
  Axis& columns = axis(false, image.in_width, image.resized_width, image.covered_left - image.left, width);
  const ColumnTable& table = columns.columns;
  int strips = (image.out_width + kShortColumns - 1) / kShortColumns;
  int strip = 0;
  int words = 0;
  for (;; ++strips) {
    // Multiples of four columns keep the elements' vectors whole.
    strip = ((image.out_width + strips - 1) / strips + 3) / 4 * 4;
    words = 0;
    for (int left = 0; left < image.out_width; left += strip) {
      const int from = std::max(left, image.covered_left) - image.covered_left;
      const int to = std::min(left + strip, image.covered_right) - image.covered_left;
      words = std::max(words, span_of(table, from, to).words());
    }
    if (words <= kShortThreads * kShortWords) break;
    if (strip <= 4) return false;
  }
  ShortForm& form = image.short_form;
  form.group_threads = ((words + kShortWords - 1) / kShortWords + 31) / 32 * 32;
  const int groups = kShortThreads / form.group_threads;
  form.tile_rows = groups * kShortRows;
  // Rows are two banks apart, which the eight rows that a warp reads at a time share evenly.
  form.row_bytes = (words * 8 + kBankRow - 1) / kBankRow * kBankRow + 8;
  form.pairs = table.pairs;
  form.tile_columns = strip;
  // A window's last pair may begin behind the strip's last pixel.
  const size_t rows_bytes =
      aligned(static_cast<size_t>(form.tile_rows) * static_cast<size_t>(form.row_bytes) + static_cast<size_t>(table.pairs) * 12);
  form.weights_at = static_cast<int>(rows_bytes);
  form.firsts_at = form.weights_at + static_cast<int>(aligned(static_cast<size_t>(strip * table.pairs) * 4));
  const size_t shared = static_cast<size_t>(form.firsts_at) + static_cast<size_t>(strip) * 4;
  if (shared > kShortSharedBytes) return false;
  shared_bytes_ = std::max(shared_bytes_, shared);
  use(columns);
  use(axis(true, image.in_height, image.resized_height, image.covered_top - image.top, height));
  for (int row = 0; row < image.out_height; row += form.tile_rows) {
    for (int left = 0; left < image.out_width; left += strip) {
      const int from = std::max(left, image.covered_left) - image.covered_left;
      const int to = std::min(left + strip, image.covered_right) - image.covered_left;
      const Span span = span_of(table, from, to);
      tiles_.push_back({number, row, left, span.first, span.end});
    }
  }
  return true;
}

void ShortPlan::write_tables(uint8_t* to) const {
  for (const Axis* axis : used_) std::memcpy(to + axis->offset, axis->bytes.data(), axis->bytes.size());
}

void ShortPlan::place(FusedImage& image, const uint8_t* base) const {
  const Axis& rows = *axes_.at({true, image.in_height, image.resized_height, image.covered_top - image.top,
                                image.covered_bottom - image.covered_top});
  const Axis& columns = *axes_.at({false, image.in_width, image.resized_width, image.covered_left - image.left,
                                   image.covered_right - image.covered_left});
  image.short_form.steps = reinterpret_cast<const RowStep*>(base + rows.offset);
  image.short_form.starts = reinterpret_cast<const int32_t*>(base + rows.offset + rows.second);
  image.short_form.weights = reinterpret_cast<const uint32_t*>(base + columns.offset);
  image.short_form.firsts = reinterpret_cast<const int32_t*>(base + columns.offset + columns.second);
}

}  // namespace tritonstack::image
