#include <algorithm>
#include <cmath>

#include "gpu/kernels.h"

namespace tritonstack::image {

namespace {

// Bytes of a source row that `columns` neighbouring outputs need at most, with the loss by alignment.
int64_t strip_bytes(const FusedImage& image, int columns, Interpolation interpolation) {
  const double scale = static_cast<double>(image.in_width) / image.resized_width;
  const double support = (interpolation == Interpolation::bicubic ? 2.0 : 1.0) * std::max(scale, 1.0);
  const double pixels = (columns - 1) * scale + 2 * support + 3;
  return static_cast<int64_t>(std::ceil(std::min(pixels, static_cast<double>(image.in_width)))) * kChannels + 7;
}

}  // namespace

bool is_exact(const Operation& operation) {
  return operation.interpolation == Interpolation::nearest || (operation.round_u8 && operation.antialias);
}

FusedOperation fused_operation(const Operation& operation) {
  FusedOperation fused{};
  fused.interpolation = operation.interpolation;
  fused.antialias = operation.antialias;
  fused.round_u8 = operation.round_u8;
  fused.bgr = operation.channel_order == ChannelOrder::bgr;
  fused.nhwc = operation.layout == Layout::nhwc;
  fused.element = operation.element;
  fused.pad_value = operation.pad_value;
  for (size_t c = 0; c < 3; ++c) {
    fused.scale[c] = operation.scale / operation.std[c];
    fused.shift[c] = -operation.mean[c] / operation.std[c];
  }
  return fused;
}

void TilePlan::clear() {
  tiles_.clear();
  words_per_thread_ = 1;
}

void TilePlan::prepare(const std::vector<FusedImage>& images, size_t first) {
  const bool narrow = std::all_of(images.begin() + static_cast<ptrdiff_t>(first), images.end(), [&](const FusedImage& image) {
    const int columns = image.covered_right - image.covered_left;
    return strip_bytes(image, columns, operation_.interpolation) <= int64_t{kThreads} * 4;
  });
  words_per_thread_ = narrow ? 1 : kMaxWordsPerThread;
}

void TilePlan::add(FusedImage& image, int number) {
  int columns = image.out_width;
  int rows = kExactRows;
  if (exact_) {
    columns = std::min(columns, kExactColumns);
  } else {
    rows = words_per_thread_ == 1 ? kFusedRows<1> : kFusedRows<kMaxWordsPerThread>;
    const int64_t room = int64_t{kThreads} * words_per_thread_ * 4;
    const int64_t whole = strip_bytes(image, columns, operation_.interpolation);
    int64_t strips = (whole + room - 1) / room;
    // The halo of each strip comes on top, so the first guess can be too small. The columns' descriptions share the
    // block's memory with the rows, which bounds them too.
    while (columns > 1 && (strip_bytes(image, columns, operation_.interpolation) > room || columns > kThreads)) {
      columns = static_cast<int>((image.out_width + strips - 1) / strips);
      ++strips;
    }
  }
  image.tile_columns = columns;
  image.row_scale = static_cast<double>(image.in_height) / image.resized_height;
  image.column_scale = static_cast<double>(image.in_width) / image.resized_width;
  for (int row = 0; row < image.out_height; row += rows) {
    for (int column = 0; column < image.out_width; column += columns) {
      tiles_.push_back({number, row, column});
    }
  }
}

}  // namespace tritonstack::image
