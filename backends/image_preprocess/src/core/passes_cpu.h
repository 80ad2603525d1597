// The inner loops of the CPU resampling, compiled for AVX2 and for any x86-64; the loader picks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tritonstack::image {

// Rows that the horizontal pass handles at a time, so that weights are loaded once for all of them.
constexpr int kRowsAtATime = 4;

// Bytes that may be read behind the last pixel of a source row.
constexpr size_t kReadAhead = 16;

// Weights of one output as pairs of taps laid out for eight lanes: r g b r g b and two zeros. `pair_first` counts
// weights of eight; an output has pairs[i] of them.
struct PairedTaps {
  const int* first;
  const int* taps;
  int stride_pairs;
  int count;
};

// sources[r] → outputs[r][i * 3 + channel], rounded to 8 bits. Rows may repeat.
void horizontal_fixed(const PairedTaps& taps, const int32_t* pairs, const uint8_t* const* sources,
                      uint8_t* const* outputs);
void horizontal_float(const PairedTaps& taps, const float* pairs, const uint8_t* const* sources, float* const* outputs);

// One output row from `taps` source rows, `stride` values apart; `count` values each.
void vertical_fixed(const int32_t* weights, int taps, const uint8_t* source, size_t stride, size_t count, uint8_t* out);
void vertical_float(const float* weights, int taps, const float* source, size_t stride, size_t count, float* out);

// Clamped to 0 … 255; with `round` to the nearest whole number, half to even.
void finish_float(float* values, size_t count, bool round);

}  // namespace tritonstack::image
