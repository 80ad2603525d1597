#include "core/resample_cpu.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/passes_cpu.h"

namespace tritonstack::image {
namespace {

constexpr size_t kKeptBytes = size_t{32} << 20;

// Each pair of taps as eight lanes: w0 w0 w0 w1 w1 w1 0 0.
template <typename Weight>
std::vector<Weight> paired(const Taps<Weight>& taps) {
  const int pairs = (taps.stride + 1) / 2;
  std::vector<Weight> lanes(static_cast<size_t>(taps.count()) * static_cast<size_t>(pairs) * 8, Weight{0});
  for (int i = 0; i < taps.count(); ++i) {
    for (int k = 0; k < taps.stride; ++k) {
      Weight* pair =
          lanes.data() + (static_cast<size_t>(i) * static_cast<size_t>(pairs) + static_cast<size_t>(k / 2)) * 8;
      for (int c = 0; c < 3; ++c) pair[(k % 2) * 3 + c] = taps.of(i)[k];
    }
  }
  return lanes;
}

template <typename Value>
void grow(std::vector<Value>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count);
}

template <typename Value>
void shrink(std::vector<Value>& buffer) {
  if (buffer.capacity() * sizeof(Value) > kKeptBytes) std::vector<Value>().swap(buffer);
}

// What the two passes need to know of one axis' weights.
template <typename Weight>
PairedTaps view_of(const Taps<Weight>& taps) {
  return {taps.first.data(), taps.taps.data(), (taps.stride + 1) / 2, taps.count()};
}

}  // namespace

Resampler::Resampler(const Operation& operation) : operation_(operation), normaliser_(operation) {}

void Resampler::run(const Geometry& geometry, PixelView source, Rect region, void* output) {
  const Rect covered = geometry.covered();
  const Rect& cut = geometry.source_crop;
  // A view as if all of source_crop were there; only what needed_source() names is ever read.
  const PixelView whole{source.data, {cut.height, cut.width}, source.row_bytes};
  const ptrdiff_t down = static_cast<ptrdiff_t>(cut.top - region.top) * static_cast<ptrdiff_t>(source.row_bytes);
  const ptrdiff_t across = static_cast<ptrdiff_t>(cut.left - region.left) * kChannels;
  const PixelView view{whole.data + down + across, whole.size, whole.row_bytes};
  if (covered.height == 0 || covered.width == 0) {
    normaliser_.write(geometry, source.data, 0, output);
    return;
  }
  const int first_output_row = covered.top - geometry.top;
  const int first_output_column = covered.left - geometry.left;
  if (geometry.resized == view.size) {
    normaliser_.write(geometry, view.at(first_output_row, first_output_column), view.row_bytes, output);
    return;
  }
  if (operation_.interpolation == Interpolation::nearest) {
    pick_nearest(geometry, view, output);
    return;
  }
  prepare(columns_, cut.width, geometry.resized.width, first_output_column, covered.width);
  prepare(rows_, cut.height, geometry.resized.height, first_output_row, covered.height);
  const int first_row = rows_.exact.first.front();
  const int end_row = rows_.exact.first.back() + rows_.exact.taps.back();
  // The readable end of the source: rows below belong to someone else.
  last_readable_ = region.top + region.height - cut.top - 1;
  const bool exact = operation_.round_u8 && operation_.antialias;
  if (exact && vertical_first(view.size, geometry.resized)) {
    resample_exactly_rows_first(geometry, view, output);
  } else if (exact) {
    resample_exactly(geometry, view, first_row, end_row - first_row, output);
  } else {
    resample_in_float(geometry, view, first_row, end_row - first_row, output);
  }
}

void Resampler::trim() {
  shrink(narrow_);
  shrink(narrow_float_);
  shrink(small_);
  shrink(small_float_);
  shrink(last_rows_);
}

void Resampler::prepare(Axis& axis, int in, int out, int begin, int count) {
  if (axis.in == in && axis.out == out && axis.begin == begin && axis.count == count) return;
  axis.exact = make_taps(operation_.interpolation, operation_.antialias, in, out, begin, count);
  if (operation_.round_u8 && operation_.antialias) {
    axis.fixed = to_fixed_point(axis.exact);
    axis.fixed_pairs = paired(axis.fixed);
  } else {
    axis.plain = to_float(axis.exact);
    axis.plain_pairs = paired(axis.plain);
  }
  axis.in = in;
  axis.out = out;
  axis.begin = begin;
  axis.count = count;
}

// The horizontal pass reads up to kReadAhead bytes beyond a row's last pixel. Behind the last rows that is foreign
// memory, so they are read from copies with room behind them: `slot` of kRowsAtATime.
const uint8_t* Resampler::readable_row(PixelView cut, int row, int slot) {
  if (static_cast<size_t>(std::max(0, last_readable_ - row)) * cut.row_bytes >= kReadAhead) return cut.row(row);
  const auto first = static_cast<size_t>(columns_.exact.first.front()) * kChannels;
  const auto end = static_cast<size_t>(columns_.exact.first.back() + columns_.exact.taps.back()) * kChannels;
  uint8_t* copy = last_rows_.data() + static_cast<size_t>(slot) * (end - first + kReadAhead);
  std::memcpy(copy, cut.row(row) + first, end - first);
  return copy - first;
}

template <typename Temporary, typename Pass>
void Resampler::narrow(PixelView cut, int first_row, int rows, Temporary* out, size_t stride, Pass pass) {
  const int used_columns = columns_.exact.first.back() + columns_.exact.taps.back() - columns_.exact.first.front();
  grow(last_rows_, (static_cast<size_t>(used_columns) * kChannels + kReadAhead) * kRowsAtATime);
  for (int y = 0; y < rows; y += kRowsAtATime) {
    std::array<const uint8_t*, kRowsAtATime> sources{};
    std::array<Temporary*, kRowsAtATime> outputs{};
    for (int r = 0; r < kRowsAtATime; ++r) {
      const int row = std::min(y + r, rows - 1);
      sources[static_cast<size_t>(r)] = readable_row(cut, first_row + row, r);
      outputs[static_cast<size_t>(r)] = out + static_cast<size_t>(row) * stride;
    }
    pass(sources.data(), outputs.data());
  }
}

void Resampler::resample_exactly(const Geometry& geometry, PixelView cut, int first_row, int rows, void* output) {
  const Rect covered = geometry.covered();
  const size_t values = static_cast<size_t>(covered.width) * kChannels;
  const uint8_t* narrowed = nullptr;
  size_t stride = values;
  if (cut.size.width == geometry.resized.width) {
    narrowed = cut.at(first_row, covered.left - geometry.left);
    stride = cut.row_bytes;
  } else {
    grow(narrow_, static_cast<size_t>(rows) * values);
    narrow(cut, first_row, rows, narrow_.data(), stride, [&](const uint8_t* const* sources, uint8_t* const* outputs) {
      horizontal_fixed(view_of(columns_.fixed), columns_.fixed_pairs.data(), sources, outputs);
    });
    narrowed = narrow_.data();
  }
  if (cut.size.height == geometry.resized.height) {
    normaliser_.write(geometry, narrowed, stride, output);
    return;
  }
  grow(small_, static_cast<size_t>(covered.height) * values);
  for (int y = 0; y < covered.height; ++y) {
    const auto index = static_cast<size_t>(y);
    const size_t start = static_cast<size_t>(rows_.fixed.first[index] - first_row) * stride;
    vertical_fixed(rows_.fixed.of(y), rows_.fixed.taps[index], narrowed + start, stride, values,
                   small_.data() + index * values);
  }
  normaliser_.write(geometry, small_.data(), values, output);
}

void Resampler::resample_exactly_rows_first(const Geometry& geometry, PixelView cut, void* output) {
  const Rect covered = geometry.covered();
  const bool keep_columns = cut.size.width == geometry.resized.width;
  const int first_column = keep_columns ? covered.left - geometry.left : columns_.exact.first.front();
  const int end_column =
      keep_columns ? first_column + covered.width : columns_.exact.first.back() + columns_.exact.taps.back();
  const size_t across = static_cast<size_t>(end_column - first_column) * kChannels;
  grow(narrow_, static_cast<size_t>(covered.height) * across + kReadAhead);
  for (int y = 0; y < covered.height; ++y) {
    const auto index = static_cast<size_t>(y);
    vertical_fixed(rows_.fixed.of(y), rows_.fixed.taps[index], cut.at(rows_.fixed.first[index], first_column),
                   cut.row_bytes, across, narrow_.data() + index * across);
  }
  if (keep_columns) {
    normaliser_.write(geometry, narrow_.data(), across, output);
    return;
  }
  const size_t values = static_cast<size_t>(covered.width) * kChannels;
  grow(small_, static_cast<size_t>(covered.height) * values);
  // The rows now start at first_column; the buffer has room behind its last one.
  const PixelView rows{
      narrow_.data() - static_cast<size_t>(first_column) * kChannels, {covered.height, end_column}, across};
  last_readable_ = covered.height;
  narrow(rows, 0, covered.height, small_.data(), values, [&](const uint8_t* const* sources, uint8_t* const* outputs) {
    horizontal_fixed(view_of(columns_.fixed), columns_.fixed_pairs.data(), sources, outputs);
  });
  normaliser_.write(geometry, small_.data(), values, output);
}

void Resampler::resample_in_float(const Geometry& geometry, PixelView cut, int first_row, int rows, void* output) {
  const Rect covered = geometry.covered();
  const size_t values = static_cast<size_t>(covered.width) * kChannels;
  grow(narrow_float_, static_cast<size_t>(rows) * values);
  narrow(cut, first_row, rows, narrow_float_.data(), values, [&](const uint8_t* const* sources, float* const* outputs) {
    horizontal_float(view_of(columns_.plain), columns_.plain_pairs.data(), sources, outputs);
  });
  grow(small_float_, static_cast<size_t>(covered.height) * values);
  for (int y = 0; y < covered.height; ++y) {
    const auto index = static_cast<size_t>(y);
    const size_t start = static_cast<size_t>(rows_.plain.first[index] - first_row) * values;
    vertical_float(rows_.plain.of(y), rows_.plain.taps[index], narrow_float_.data() + start, values, values,
                   small_float_.data() + index * values);
  }
  finish_float(small_float_.data(), static_cast<size_t>(covered.height) * values, operation_.round_u8);
  normaliser_.write(geometry, small_float_.data(), values, output);
}

void Resampler::pick_nearest(const Geometry& geometry, PixelView cut, void* output) {
  const Rect covered = geometry.covered();
  const size_t values = static_cast<size_t>(covered.width) * kChannels;
  const std::vector<int> columns =
      nearest_sources(cut.size.width, geometry.resized.width, covered.left - geometry.left, covered.width);
  const std::vector<int> rows =
      nearest_sources(cut.size.height, geometry.resized.height, covered.top - geometry.top, covered.height);
  small_.assign(static_cast<size_t>(covered.height) * values, 0);
  for (int y = 0; y < covered.height; ++y) {
    const int row = rows[static_cast<size_t>(y)];
    if (row < 0) continue;
    uint8_t* out = small_.data() + static_cast<size_t>(y) * values;
    for (const int column : columns) {
      if (column >= 0) std::memcpy(out, cut.at(row, column), kChannels);
      out += kChannels;
    }
  }
  normaliser_.write(geometry, small_.data(), values, output);
}

}  // namespace tritonstack::image
