#include "core/normalise.h"

#include <algorithm>
#include <cmath>

namespace tritonstack::image {
namespace {

uint32_t bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// `value` in the element type, in the low bits. u8 values have passed [0, 255] already.
uint32_t encoded(ElementType type, float value) {
  switch (type) {
    case ElementType::u8:
      return static_cast<uint32_t>(std::nearbyint(std::clamp(value, 0.0F, 255.0F)));
    case ElementType::f16:
      return to_half(value);
    case ElementType::bf16:
      return to_bfloat16(value);
    case ElementType::f32:
      break;
  }
  return bits_of(value);
}

// Distances in elements between neighbours of the output.
struct Strides {
  size_t channel;
  size_t row;
  size_t column;
};

Strides strides_of(Layout layout, Size output) {
  const auto width = static_cast<size_t>(output.width);
  if (layout == Layout::nchw) return {static_cast<size_t>(pixels(output)), width, 1};
  return {1, width * kChannels, kChannels};
}

template <typename Element>
void fill(Element* out, size_t column, size_t count, Element value) {
  for (size_t x = 0; x < count; ++x) out[x * column] = value;
}

// Writes channel planes row by row; `convert(channel, pixel)` gives the element.
template <typename Element, typename Pixel, typename Convert>
void write_all(const Operation& operation, const Geometry& geometry, const Pixel* source, size_t row_values,
               Element* output, const std::array<Element, kChannels>& pad, Convert convert) {
  const Strides strides = strides_of(operation.layout, geometry.output);
  const Rect covered = geometry.covered();
  const auto left = static_cast<size_t>(covered.left);
  const auto width = static_cast<size_t>(covered.width);
  const size_t right = static_cast<size_t>(geometry.output.width) - left - width;
  for (int y = 0; y < geometry.output.height; ++y) {
    const bool inside = y >= covered.top && y < covered.top + covered.height && width > 0;
    const Pixel* row = inside ? source + static_cast<size_t>(y - covered.top) * row_values : nullptr;
    for (size_t c = 0; c < kChannels; ++c) {
      Element* out = output + c * strides.channel + static_cast<size_t>(y) * strides.row;
      if (!inside) {
        fill(out, strides.column, static_cast<size_t>(geometry.output.width), pad[c]);
        continue;
      }
      const size_t from = operation.channel_order == ChannelOrder::rgb ? c : kChannels - 1 - c;
      fill(out, strides.column, left, pad[c]);
      Element* inner = out + left * strides.column;
      if (strides.column == 1) {
        for (size_t x = 0; x < width; ++x) inner[x] = convert(c, row[x * kChannels + from]);
      } else {
        for (size_t x = 0; x < width; ++x) inner[x * kChannels] = convert(c, row[x * kChannels + from]);
      }
      fill(inner + width * strides.column, strides.column, right, pad[c]);
    }
  }
}

}  // namespace

uint16_t to_half(float value) {
  const uint32_t bits = bits_of(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // from 65520 on
  if (magnitude < 0x38800000U) {
    // Below the smallest normal half: adding 0.5 lets the float unit round at the last bit of a subnormal half.
    const uint32_t rounded = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
    return static_cast<uint16_t>(sign | rounded);
  }
  const uint32_t odd = (magnitude >> 13) & 1U;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13));
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return float_of(sign | bits_of(magnitude));
  }
  if (exponent == 31) return float_of(sign | 0x7F800000U | (mantissa << 13));
  return float_of(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

Normaliser::Normaliser(const Operation& operation) : operation_(operation), table_{} {
  for (int c = 0; c < kChannels; ++c) {
    for (int pixel = 0; pixel < 256; ++pixel) {
      table_[static_cast<size_t>(c)][static_cast<size_t>(pixel)] =
          encoded(operation.element, normalised(operation, c, static_cast<float>(pixel)));
    }
  }
}

void Normaliser::write(const Geometry& geometry, const uint8_t* source, size_t row_values, void* output) const {
  const auto run = [&](auto* typed) {
    using Element = std::remove_pointer_t<decltype(typed)>;
    std::array<std::array<Element, 256>, kChannels> table;
    std::array<Element, kChannels> pad;
    for (size_t c = 0; c < kChannels; ++c) {
      for (size_t pixel = 0; pixel < 256; ++pixel) table[c][pixel] = static_cast<Element>(table_[c][pixel]);
      pad[c] = table[c][operation_.pad_value];
    }
    write_all<Element>(operation_, geometry, source, row_values, typed, pad,
                       [&](size_t c, uint8_t pixel) { return table[c][pixel]; });
  };
  switch (byte_size(operation_.element)) {
    case 1:
      return run(static_cast<uint8_t*>(output));
    case 2:
      return run(static_cast<uint16_t*>(output));
    default:
      return run(static_cast<uint32_t*>(output));
  }
}

void Normaliser::write(const Geometry& geometry, const float* source, size_t row_values, void* output) const {
  const auto run = [&](auto* typed) {
    using Element = std::remove_pointer_t<decltype(typed)>;
    std::array<Element, kChannels> pad;
    for (size_t c = 0; c < kChannels; ++c) pad[c] = static_cast<Element>(table_[c][operation_.pad_value]);
    write_all<Element>(operation_, geometry, source, row_values, typed, pad, [&](size_t c, float pixel) {
      return static_cast<Element>(encoded(operation_.element, normalised(operation_, static_cast<int>(c), pixel)));
    });
  };
  switch (byte_size(operation_.element)) {
    case 1:
      return run(static_cast<uint8_t*>(output));
    case 2:
      return run(static_cast<uint16_t*>(output));
    default:
      return run(static_cast<uint32_t*>(output));
  }
}

}  // namespace tritonstack::image
