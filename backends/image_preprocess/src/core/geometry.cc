#include "core/geometry.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/filter.h"

namespace tritonstack::image {
namespace {

// Pixels a resize by the shorter side may produce: a picture of 1 × 60000 would grow beyond any use.
constexpr int64_t kMaxResizedPixels = 64'000'000;

struct Span {
  int begin = 0;
  int end = 0;
};

// The central `size` of `whole`; an odd remainder leaves the larger margin at the bottom and right.
int central(int whole, int size) {
  return (whole - size) / 2;
}

int rounded_half_even(double value) {
  return static_cast<int>(std::nearbyint(value));
}

Size by_shorter_side(int side, Size source) {
  const int64_t shorter = std::min(source.height, source.width);
  const int64_t longer = std::max(source.height, source.width);
  const int64_t resized = std::max<int64_t>(1, side * longer / shorter);
  if (side * resized > kMaxResizedPixels) {
    throw ImageError(FailureKind::geometry, "too narrow to be resized by its shorter side; given " + to_string(source) +
                                                " pixels, which would become " + std::to_string(side) + " × " +
                                                std::to_string(resized) + "; expected at most " +
                                                std::to_string(kMaxResizedPixels) + " pixels");
  }
  const int longer_side = static_cast<int>(resized);
  return source.width <= source.height ? Size{longer_side, side} : Size{side, longer_side};
}

// Which source pixels the outputs begin … begin + count - 1 of one axis read.
Span needed_span(const Operation& operation, int in, int out, int begin, int count) {
  if (in == out) return {begin, begin + count};
  if (operation.interpolation == Interpolation::nearest) {
    const std::vector<int> sources = nearest_sources(in, out, begin, count);
    Span span{in, 0};
    for (const int source : sources) {
      if (source < 0) continue;
      span.begin = std::min(span.begin, source);
      span.end = std::max(span.end, source + 1);
    }
    return span.begin < span.end ? span : Span{0, 1};
  }
  const Taps<double> first = make_taps(operation.interpolation, operation.antialias, in, out, begin, 1);
  const Taps<double> last = make_taps(operation.interpolation, operation.antialias, in, out, begin + count - 1, 1);
  return {first.first[0], last.first[0] + last.taps[0]};
}

}  // namespace

std::string to_string(Size size) {
  return std::to_string(size.height) + " × " + std::to_string(size.width);
}

Rect Geometry::covered() const {
  const int first_row = std::max(top, 0);
  const int first_column = std::max(left, 0);
  const int end_row = std::min(top + resized.height, output.height);
  const int end_column = std::min(left + resized.width, output.width);
  return {first_row, first_column, std::max(0, end_row - first_row), std::max(0, end_column - first_column)};
}

Geometry plan_geometry(const Operation& operation, Size source) {
  if (source.height < 1 || source.width < 1) {
    throw ImageError(FailureKind::geometry, "has no pixels; given " + to_string(source) + " pixels");
  }
  Geometry plan;
  plan.source = source;
  plan.source_crop = {0, 0, source.height, source.width};
  if (operation.crop_fraction) {
    const int side = std::max(1, static_cast<int>(*operation.crop_fraction * std::min(source.height, source.width)));
    plan.source_crop = {central(source.height, side), central(source.width, side), side, side};
  }
  const Size cut{plan.source_crop.height, plan.source_crop.width};
  switch (operation.resize) {
    case ResizeMode::none:
      plan.resized = cut;
      plan.output = cut;
      break;
    case ResizeMode::exact:
      plan.resized = operation.target;
      plan.output = operation.target;
      break;
    case ResizeMode::shorter:
      plan.resized = by_shorter_side(operation.target.height, cut);
      plan.output = plan.resized;
      break;
    case ResizeMode::letterbox: {
      const double factor = std::min(static_cast<double>(operation.target.height) / cut.height,
                                     static_cast<double>(operation.target.width) / cut.width);
      plan.resized = {std::max(1, rounded_half_even(cut.height * factor)),
                      std::max(1, rounded_half_even(cut.width * factor))};
      plan.output = operation.target;
      plan.top = central(plan.output.height, plan.resized.height);
      plan.left = central(plan.output.width, plan.resized.width);
      break;
    }
  }
  if (operation.center_crop) {
    const Size crop = *operation.center_crop;
    if (plan.output.height < crop.height || plan.output.width < crop.width) {
      throw ImageError(FailureKind::geometry, "smaller than the crop; given " + to_string(plan.output) +
                                                  " pixels (height × width); expected at least " + to_string(crop));
    }
    plan.top -= central(plan.output.height, crop.height);
    plan.left -= central(plan.output.width, crop.width);
    plan.output = crop;
  }
  return plan;
}

std::array<float, 8> describe(const Geometry& geometry) {
  const double scale_x = static_cast<double>(geometry.resized.width) / geometry.source_crop.width;
  const double scale_y = static_cast<double>(geometry.resized.height) / geometry.source_crop.height;
  return {static_cast<float>(scale_x),
          static_cast<float>(scale_y),
          static_cast<float>(geometry.left - geometry.source_crop.left * scale_x),
          static_cast<float>(geometry.top - geometry.source_crop.top * scale_y),
          static_cast<float>(geometry.source.height),
          static_cast<float>(geometry.source.width),
          static_cast<float>(geometry.resized.height),
          static_cast<float>(geometry.resized.width)};
}

Rect needed_source(const Operation& operation, const Geometry& geometry) {
  const Rect covered = geometry.covered();
  const Rect& cut = geometry.source_crop;
  if (covered.height == 0 || covered.width == 0) return {cut.top, cut.left, 1, 1};
  const Span rows =
      needed_span(operation, cut.height, geometry.resized.height, covered.top - geometry.top, covered.height);
  const Span columns =
      needed_span(operation, cut.width, geometry.resized.width, covered.left - geometry.left, covered.width);
  return {cut.top + rows.begin, cut.left + columns.begin, rows.end - rows.begin, columns.end - columns.begin};
}

}  // namespace tritonstack::image
