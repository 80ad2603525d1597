#include "core/filter.h"

#include <algorithm>
#include <cmath>

namespace tritonstack::image {
namespace {

double triangle(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

// The cubic convolution kernel in the order of operations that Pillow uses for a = -0.5.
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

Taps<double> sized(int count, int stride) {
  Taps<double> taps;
  taps.stride = stride;
  taps.first.resize(static_cast<size_t>(count));
  taps.taps.resize(static_cast<size_t>(count));
  taps.weights.assign(static_cast<size_t>(count) * static_cast<size_t>(stride), 0.0);
  return taps;
}

Taps<double> antialiased(Interpolation interpolation, int in, int out, int begin, int count) {
  const bool is_cubic = interpolation == Interpolation::bicubic;
  const double scale = static_cast<double>(in) / out;
  const double filter_scale = std::max(scale, 1.0);
  const double support = (is_cubic ? 2.0 : 1.0) * filter_scale;
  Taps<double> taps = sized(count, static_cast<int>(std::ceil(support)) * 2 + 1);
  const double inverse = 1.0 / filter_scale;
  for (int i = 0; i < count; ++i) {
    const double center = (begin + i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int end = std::min(in, static_cast<int>(center + support + 0.5));
    double* weights = taps.weights.data() + static_cast<size_t>(i) * static_cast<size_t>(taps.stride);
    double sum = 0.0;
    for (int k = 0; k < end - first; ++k) {
      const double x = (k + first - center + 0.5) * inverse;
      weights[k] = is_cubic ? cubic(x, -0.5) : triangle(x);
      sum += weights[k];
    }
    for (int k = 0; k < end - first && sum != 0.0; ++k) weights[k] /= sum;
    taps.first[static_cast<size_t>(i)] = first;
    taps.taps[static_cast<size_t>(i)] = end - first;
  }
  return taps;
}

// Half-pixel centres, no filter: 2 or 4 neighbours; neighbours beyond the border fall on the border pixel.
Taps<double> plain(Interpolation interpolation, int in, int out, int begin, int count) {
  const bool is_cubic = interpolation == Interpolation::bicubic;
  const double scale = static_cast<double>(in) / out;
  Taps<double> taps = sized(count, is_cubic ? 4 : 2);
  for (int i = 0; i < count; ++i) {
    double position = (begin + i + 0.5) * scale - 0.5;
    if (!is_cubic) position = std::max(position, 0.0);
    const int base = static_cast<int>(std::floor(position));
    const double fraction = position - base;
    const int lowest = is_cubic ? base - 1 : base;
    const int neighbours = is_cubic ? 4 : 2;
    const int first = std::clamp(lowest, 0, in - 1);
    double* weights = taps.weights.data() + static_cast<size_t>(i) * static_cast<size_t>(taps.stride);
    int last = first;
    for (int k = 0; k < neighbours; ++k) {
      const int source = std::clamp(lowest + k, 0, in - 1);
      const double distance = lowest + k - base - fraction;
      weights[source - first] += is_cubic ? cubic(distance, -0.75) : triangle(distance);
      last = std::max(last, source);
    }
    taps.first[static_cast<size_t>(i)] = first;
    taps.taps[static_cast<size_t>(i)] = last - first + 1;
  }
  return taps;
}

template <typename Weight, typename Convert>
Taps<Weight> converted(const Taps<double>& taps, Convert convert) {
  Taps<Weight> result;
  result.first = taps.first;
  result.taps = taps.taps;
  result.stride = taps.stride;
  result.weights.reserve(taps.weights.size());
  for (const double weight : taps.weights) result.weights.push_back(convert(weight));
  return result;
}

}  // namespace

Taps<double> make_taps(Interpolation interpolation, bool antialias, int in, int out, int begin, int count) {
  return antialias ? antialiased(interpolation, in, out, begin, count) : plain(interpolation, in, out, begin, count);
}

Taps<float> to_float(const Taps<double>& taps) {
  return converted<float>(taps, [](double weight) { return static_cast<float>(weight); });
}

Taps<int32_t> to_fixed_point(const Taps<double>& taps) {
  return converted<int32_t>(taps, [](double weight) {
    return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kFixedPointBits));
  });
}

bool vertical_first(Size in, Size out) {
  return out.height < in.height && in.height - out.height > 2 * (in.width - out.width);
}

std::vector<int> nearest_sources(int in, int out, int begin, int count) {
  const double scale = static_cast<double>(in) / out;
  double position = 0.0 + scale * 0.5;
  std::vector<int> sources;
  sources.reserve(static_cast<size_t>(count));
  for (int i = 0; i < begin + count; ++i) {
    if (i >= begin) {
      const int source = position < 0.0 ? -1 : static_cast<int>(position);
      sources.push_back(source < in ? source : -1);
    }
    position += scale;
  }
  return sources;
}

}  // namespace tritonstack::image
