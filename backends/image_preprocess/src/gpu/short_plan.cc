#include "gpu/short_plan.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tritonstack::image {
namespace {

constexpr int kBankRow = 128;  // bytes of shared memory that all banks serve at a time
constexpr int kVectorSlack = 15;  // bytes that a load of 16 may reach beyond what is needed

template <typename Integer>
Integer aligned(Integer bytes) {
  return (bytes + 15) / 16 * 16;
}

template <typename Item>
size_t append(std::vector<uint8_t>& bytes, const std::vector<Item>& items) {
  const size_t begin = aligned(bytes.size());
  bytes.resize(aligned(begin + items.size() * sizeof(Item)));
  std::memcpy(bytes.data() + begin, items.data(), items.size() * sizeof(Item));
  return begin;
}

int words_of(const StripSpan& span) { return ((span.end - span.first) * kChannels + 3) / 4; }

// The outputs of a table in strips of `columns`. Sources begin at a pixel at which 16 bytes begin if they do in column 0.
std::vector<StripSpan> strips_of(const ColumnTable& table, int columns) {
  const int count = static_cast<int>(table.firsts.size());
  std::vector<StripSpan> strips;
  for (int from = 0; from < count; from += columns) {
    const int to = std::min(from + columns, count);
    strips.push_back({from, to - from, table.firsts[static_cast<size_t>(from)] / 16 * 16,
                      *std::max_element(table.ends.begin() + from, table.ends.begin() + to)});
  }
  return strips;
}

// By how many banks the rows of sums should be apart: of two ways the one in which a warp's reads (eight rows of four
// columns, each four from the next) meet less often.
int bank_step_of(const ColumnTable& table) {
  const auto wavefronts = [&](int step) {
    int64_t sum = 0;
    for (size_t x = 0; x + 12 < table.firsts.size(); ++x) {
      std::array<int, 32> reads{};
      for (int lane = 0; lane < 32; ++lane) {
        const int word = table.firsts[x + 4 * static_cast<size_t>(lane / 8)] / 2 * 3 + lane % 8 * step;
        ++reads[static_cast<size_t>(word % 32)];
      }
      sum += *std::max_element(reads.begin(), reads.end());
    }
    return sum;
  };
  return wavefronts(4) < wavefronts(2) ? 4 : 2;
}

RowAlignment alignment_of(const FusedImage& image) {
  const uint64_t together = reinterpret_cast<uintptr_t>(image.source) | static_cast<uint64_t>(image.pitch);
  return together % 16 == 0 ? RowAlignment::sixteen : together % 4 == 0 ? RowAlignment::four : RowAlignment::any;
}

}  // namespace

bool ShortPlan::serves(const FusedOperation& operation, bool exact) {
  return !exact && operation.element != ElementType::f32;
}

void ShortPlan::clear() {
  used_.clear();
  tiles_ = 0;
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

ShortPlan::Axis& ShortPlan::rows_of(const FusedImage& image) {
  const int begin = image.covered_top - image.top;
  const int count = image.covered_bottom - image.covered_top;
  std::unique_ptr<Axis>& entry = axes_[{true, image.in_height, image.resized_height, begin, count}];
  if (entry == nullptr) {
    auto fresh = std::make_unique<Axis>();
    RowProgram program = make_row_program(operation_.interpolation, operation_.antialias, image.in_height,
                                          image.resized_height, begin, count);
    append(fresh->bytes, program.steps);
    fresh->ends = std::move(program.ends);
    fresh->step_stride = program.stride;
    entry = std::move(fresh);
  }
  return *entry;
}

ShortPlan::Axis& ShortPlan::columns_of(const FusedImage& image) {
  const int begin = image.covered_left - image.left;
  const int count = image.covered_right - image.covered_left;
  std::unique_ptr<Axis>& entry = axes_[{false, image.in_width, image.resized_width, begin, count}];
  if (entry == nullptr) {
    auto fresh = std::make_unique<Axis>();
    const ColumnTable table = make_column_table(operation_.interpolation, operation_.antialias, image.in_width,
                                                image.resized_width, begin, count);
    for (int strips = (count + kShortColumns - 1) / kShortColumns;; ++strips) {
      // Multiples of four columns keep the elements' vectors whole.
      const int columns = aligned((count + strips - 1) / strips * 4) / 4;
      const std::vector<StripSpan> spans = strips_of(table, columns);
      int words = 0;
      for (const StripSpan& span : spans) words = std::max(words, words_of(span));
      if (words <= kShortThreads * kShortWords) {
        append(fresh->bytes, spans);
        fresh->strip_count = static_cast<int>(spans.size());
        fresh->strip_columns = columns;
        fresh->words = words;
        break;
      }
      if (columns <= 4) break;
    }
    std::vector<int32_t> offsets;
    for (const int32_t first : table.firsts) offsets.push_back(first / 2 * 3);
    fresh->weights_at = append(fresh->bytes, table.weights);
    fresh->offsets_at = append(fresh->bytes, offsets);
    fresh->pairs = table.pairs;
    fresh->bank_step = bank_step_of(table);
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

bool ShortPlan::add(FusedImage& image) {
  const int height = image.covered_bottom - image.covered_top;
  const int width = image.covered_right - image.covered_left;
  if (height <= 0 || width <= 0) return false;
  Axis& columns = columns_of(image);
  if (columns.strip_count == 0) return false;
  ShortForm form{};
  form.pairs = columns.pairs;
  form.strip_count = columns.strip_count;
  form.group_threads = ((columns.words + kShortWords - 1) / kShortWords + 31) / 32 * 32;
  form.tile_rows = kShortThreads / form.group_threads * kGroupOutputs;
  form.row_bytes = (columns.words * 8 + kBankRow - 1) / kBankRow * kBankRow + columns.bank_step * 4;
  // A window's last pairs may begin behind the strip's last pixel, and those of columns behind the strip anywhere in it.
  form.weights_at = aligned(form.tile_rows * form.row_bytes + columns.pairs * 12);
  form.offsets_at = form.weights_at + aligned(columns.strip_columns * columns.pairs * 4);
  const auto shared = static_cast<size_t>(form.offsets_at + aligned(columns.strip_columns * 4));
  if (shared > kShortSharedBytes) return false;

  Axis& rows = rows_of(image);
  form.step_stride = rows.step_stride;
  form.tiles = form.strip_count * ((height + form.tile_rows - 1) / form.tile_rows);
  form.alignment = alignment_of(image);
  form.padded = height < image.out_height || width < image.out_width;
  // Words may begin before a row and end behind it.
  const int64_t row_bytes = int64_t{image.in_width} * kChannels + kVectorSlack;
  int64_t safe_rows = image.end - image.source < row_bytes ? 0 : (image.end - image.source - row_bytes) / image.pitch + 1;
  if (static_cast<ptrdiff_t>(reinterpret_cast<uintptr_t>(image.source) & 3U) > image.source - image.begin) safe_rows = 0;
  form.safe_outputs = static_cast<int>(
      std::upper_bound(rows.ends.begin(), rows.ends.end(), std::min<int64_t>(safe_rows, image.in_height) - 1) -
      rows.ends.begin());
  if (safe_rows >= image.in_height) form.safe_outputs = height;
  image.short_form = form;

  use(columns);
  use(rows);
  shared_bytes_ = std::max(shared_bytes_, shared);
  tiles_ = std::max(tiles_, form.tiles);
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
  image.short_form.strips = reinterpret_cast<const StripSpan*>(base + columns.offset);
  image.short_form.weights = reinterpret_cast<const uint32_t*>(base + columns.offset + columns.weights_at);
  image.short_form.offsets = reinterpret_cast<const int32_t*>(base + columns.offset + columns.offsets_at);
}

}  // namespace tritonstack::image
