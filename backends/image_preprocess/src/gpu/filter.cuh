// Windows and weights of a resampling, computed on the device in closed form.
#pragma once

#include <cstdint>

#include "gpu/kernels.h"

namespace tritonstack::image {

// Where an output takes its source pixels from: weights are filter(start + n · step) · inverse for pixel first + n.
struct Window {
  int first;
  int count;
  float start;
  float inverse;
};

template <bool kCubic, bool kPlain>
__device__ __forceinline__ float filter(float x) {
  x = fabsf(x);
  if constexpr (kCubic) {
    constexpr float a = kPlain ? -0.75F : -0.5F;
    if (x < 1.0F) return ((a + 2.0F) * x - (a + 3.0F)) * x * x + 1.0F;
    if (x < 2.0F) return (((x - 5.0F) * x + 8.0F) * x - 4.0F) * a;
    return 0.0F;
  } else {
    return fmaxf(1.0F - x, 0.0F);
  }
}

// Distance of neighbouring source pixels in units of the filter. `scale` is in / out.
template <bool kPlain>
__device__ __forceinline__ float filter_step(double scale) {
  return kPlain || scale <= 1.0 ? 1.0F : 1.0F / static_cast<float>(scale);
}

template <bool kCubic, bool kPlain>
__device__ Window window_of(int i, int in, double scale) {
  constexpr int radius = kCubic ? 2 : 1;
  const double center = (i + 0.5) * scale;
  if constexpr (kPlain) {
    const double position = center - 0.5;
    const int first = static_cast<int>(floor(position)) - (radius - 1);
    return {first, 2 * radius, static_cast<float>(first - position), 1.0F};
  } else {
    const double support = radius * fmax(scale, 1.0);
    const int first = max(static_cast<int>(center - support + 0.5), 0);
    const int end = min(static_cast<int>(center + support + 0.5), in);
    const float step = filter_step<kPlain>(scale);
    const float start = static_cast<float>(first + 0.5 - center) * step;
    float sum = 0.0F;
    for (int n = 0; n < end - first; ++n) {
      sum += filter<kCubic, kPlain>(fmaf(static_cast<float>(n), step, start));
    }
    return {first, end - first, start, 1.0F / sum};
  }
}

}  // namespace tritonstack::image
