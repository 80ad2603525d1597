// One-dimensional resampling weights, in double as Pillow computes them, as float and in 22-bit fixed point.
#pragma once

#include <cstdint>
#include <vector>

#include "core/operation.h"

namespace tritonstack::image {

// For output i of `count`: source pixels first[i] … first[i] + taps[i] - 1 with weights[i * stride + k]. Unused weights
// are 0. first counts from the start of the source given to `make_taps`.
template <typename Weight>
struct Taps {
  std::vector<int> first;
  std::vector<int> taps;
  std::vector<Weight> weights;
  int stride = 0;

  int count() const { return static_cast<int>(first.size()); }
  const Weight* of(int i) const { return weights.data() + static_cast<size_t>(i) * static_cast<size_t>(stride); }
};

// 22 bits behind the binary point: the sum of 8-bit pixels times weights fits 32 bits with room for bicubic overshoot.
constexpr int kFixedPointBits = 22;

// Weights of the outputs begin … begin + count - 1 of a resampling from `in` to `out` pixels.
//
// antialias: Pillow's (and torchvision's) filters, stretched when shrinking; bicubic with a = -0.5; windows are cut at
// the border and normalised again. Plain: half-pixel bilinear (2 taps) or bicubic (4 taps, a = -0.75) with the border
// pixel repeated, as OpenCV and torch with antialias=False. Not for nearest.
Taps<double> make_taps(Interpolation interpolation, bool antialias, int in, int out, int begin, int count);

Taps<float> to_float(const Taps<double>& taps);

// Rounded half away from zero, as Pillow.
Taps<int32_t> to_fixed_point(const Taps<double>& taps);

// Whether Pillow (13 and later; before that never) runs the vertical pass first, which shows in 8 bits: where the
// height shrinks by more than twice as many pixels as the width.
bool vertical_first(Size in, Size out);

// Source pixel of each output of a nearest resampling, as Pillow (positions are summed up in double); -1 where the sum
// has left the source, which Pillow paints black.
std::vector<int> nearest_sources(int in, int out, int begin, int count);

}  // namespace tritonstack::image
