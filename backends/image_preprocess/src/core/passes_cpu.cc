// GCC's vector types, so that one text serves every instruction set: eight lanes hold two RGB pixels and two idle ones.
#include "core/passes_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/filter.h"

#if defined(TRITONSTACK_MULTIVERSION)
#define TRITONSTACK_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define TRITONSTACK_CLONES
#endif

namespace tritonstack::image {
namespace {

using Bytes8 = uint8_t __attribute__((vector_size(8)));
using Ints8 = int32_t __attribute__((vector_size(32)));
using Floats8 = float __attribute__((vector_size(32)));

constexpr int kLanes = 8;
constexpr size_t kBlock = 32;

inline uint8_t clipped(int32_t fixed) {
  const int32_t value = fixed >> kFixedPointBits;
  return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

}  // namespace

// Pillow's horizontal pass: 2^21 + Σ weight · pixel, shifted and clipped.
TRITONSTACK_CLONES
void horizontal_fixed(const PairedTaps& taps, const int32_t* pairs, const uint8_t* const* sources,
                      uint8_t* const* outputs) {
  constexpr int32_t kHalf = 1 << (kFixedPointBits - 1);
  for (int i = 0; i < taps.count; ++i) {
    const int used = (taps.taps[i] + 1) / 2;
    const int32_t* weights = pairs + static_cast<size_t>(i) * static_cast<size_t>(taps.stride_pairs) * kLanes;
    const size_t start = static_cast<size_t>(taps.first[i]) * 3;
    Ints8 sums[kRowsAtATime] = {};
    for (int k = 0; k < used; ++k) {
      Ints8 weight;
      std::memcpy(&weight, weights + static_cast<size_t>(k) * kLanes, sizeof weight);
      for (int r = 0; r < kRowsAtATime; ++r) {
        Bytes8 bytes;
        std::memcpy(&bytes, sources[r] + start + static_cast<size_t>(k) * 6, sizeof bytes);
        sums[r] += __builtin_convertvector(bytes, Ints8) * weight;
      }
    }
    for (int r = 0; r < kRowsAtATime; ++r) {
      uint8_t* out = outputs[r] + static_cast<size_t>(i) * 3;
      for (int c = 0; c < 3; ++c) out[c] = clipped(kHalf + sums[r][c] + sums[r][c + 3]);
    }
  }
}

TRITONSTACK_CLONES
void horizontal_float(const PairedTaps& taps, const float* pairs, const uint8_t* const* sources,
                      float* const* outputs) {
  for (int i = 0; i < taps.count; ++i) {
    const int used = (taps.taps[i] + 1) / 2;
    const float* weights = pairs + static_cast<size_t>(i) * static_cast<size_t>(taps.stride_pairs) * kLanes;
    const size_t start = static_cast<size_t>(taps.first[i]) * 3;
    Floats8 sums[kRowsAtATime] = {};
    for (int k = 0; k < used; ++k) {
      Floats8 weight;
      std::memcpy(&weight, weights + static_cast<size_t>(k) * kLanes, sizeof weight);
      for (int r = 0; r < kRowsAtATime; ++r) {
        Bytes8 bytes;
        std::memcpy(&bytes, sources[r] + start + static_cast<size_t>(k) * 6, sizeof bytes);
        const Ints8 wide = __builtin_convertvector(bytes, Ints8);
        sums[r] += __builtin_convertvector(wide, Floats8) * weight;
      }
    }
    for (int r = 0; r < kRowsAtATime; ++r) {
      float* out = outputs[r] + static_cast<size_t>(i) * 3;
      for (int c = 0; c < 3; ++c) out[c] = sums[r][c] + sums[r][c + 3];
    }
  }
}

TRITONSTACK_CLONES
void vertical_fixed(const int32_t* weights, int taps, const uint8_t* source, size_t stride, size_t count,
                    uint8_t* out) {
  constexpr int32_t kHalf = 1 << (kFixedPointBits - 1);
  size_t x = 0;
  for (; x + kBlock <= count; x += kBlock) {
    int32_t sums[kBlock];
    for (size_t j = 0; j < kBlock; ++j) sums[j] = kHalf;
    for (int k = 0; k < taps; ++k) {
      const uint8_t* row = source + static_cast<size_t>(k) * stride + x;
      const int32_t weight = weights[k];
      for (size_t j = 0; j < kBlock; ++j) sums[j] += weight * row[j];
    }
    for (size_t j = 0; j < kBlock; ++j) out[x + j] = clipped(sums[j]);
  }
  for (; x < count; ++x) {
    int32_t sum = kHalf;
    for (int k = 0; k < taps; ++k) sum += weights[k] * source[static_cast<size_t>(k) * stride + x];
    out[x] = clipped(sum);
  }
}

TRITONSTACK_CLONES
void vertical_float(const float* weights, int taps, const float* source, size_t stride, size_t count, float* out) {
  size_t x = 0;
  for (; x + kBlock <= count; x += kBlock) {
    float sums[kBlock] = {};
    for (int k = 0; k < taps; ++k) {
      const float* row = source + static_cast<size_t>(k) * stride + x;
      const float weight = weights[k];
      for (size_t j = 0; j < kBlock; ++j) sums[j] += weight * row[j];
    }
    std::memcpy(out + x, sums, sizeof sums);
  }
  for (; x < count; ++x) {
    float sum = 0;
    for (int k = 0; k < taps; ++k) sum += weights[k] * source[static_cast<size_t>(k) * stride + x];
    out[x] = sum;
  }
}

TRITONSTACK_CLONES
void finish_float(float* values, size_t count, bool round) {
  // Adding and taking away 1.5 · 2^23 leaves the nearest whole number, half to even.
  constexpr float kRounder = 12582912.0F;
  for (size_t i = 0; i < count; ++i) {
    float value = values[i] < 0.0F ? 0.0F : values[i];
    value = value > 255.0F ? 255.0F : value;
    if (round) value = (value + kRounder) - kRounder;
    values[i] = value;
  }
}

}  // namespace tritonstack::image
