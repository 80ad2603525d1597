// From pixels to values: (pixel · scale − mean) / std, the layout and the element type.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/geometry.h"
#include "core/image.h"
#include "core/operation.h"

namespace tritonstack::image {

// One float32 operation after the other, as numpy does it. `channel` counts in the output's channel order.
inline float normalised(const Operation& operation, int channel, float pixel) {
  const auto c = static_cast<size_t>(channel);
  return (pixel * operation.scale - operation.mean[c]) / operation.std[c];
}

// IEEE half precision and bfloat16, rounded to nearest even; what is too large becomes infinite, NaN stays NaN.
uint16_t to_half(float value);
float half_to_float(uint16_t half);
uint16_t to_bfloat16(float value);

// Writes samples of one operation. Pixels come in RGB order, three per pixel, rows `row_values` values apart, and go to
// the `covered` part of the output; the rest gets the pad value. `output` needs the alignment of one element.
class Normaliser {
 public:
  explicit Normaliser(const Operation& operation);

  void write(const Geometry& geometry, const uint8_t* pixels, size_t row_values, void* output) const;
  void write(const Geometry& geometry, const float* pixels, size_t row_values, void* output) const;

 private:
  Operation operation_;
  // Every value an 8-bit pixel can become, as bits of the element type: [channel][pixel], channels in output order.
  std::array<std::array<uint32_t, 256>, kChannels> table_;
};

}  // namespace tritonstack::image
