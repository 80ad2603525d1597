// The vertical pass of the float kernel: from bytes of source rows to rows of floats in shared memory.
#pragma once

#include <cstdint>

#include "gpu/kernels.h"
#include "gpu/filter.cuh"

namespace tritonstack::image {

// Source rows whose weights are prepared at a time.
constexpr int kChunk = 128;

// Byte `n` of a word as float: the byte becomes the low bits of 2^23, which two instructions can subtract again.
__device__ __forceinline__ float byte_of(uint32_t word, int n) {
  return __uint_as_float(__byte_perm(word, 0x4B000000U, 0x7440U | static_cast<uint32_t>(n))) - 8388608.0F;
}

// A word of which some bytes may lie outside of the readable memory.
__device__ uint32_t guarded_word(const uint8_t* at, const uint8_t* begin, const uint8_t* end) {
  uint32_t word = 0;
  for (int b = 0; b < 4; ++b) {
    if (at + b >= begin && at + b < end) word |= static_cast<uint32_t>(at[b]) << (8 * b);
  }
  return word;
}

// How a tile reads its words: rows that start at any byte need two of them for each, and at the ends of the readable
// memory every byte is looked at. Each has code of its own, which keeps the registers of the usual one low.
enum class Access { aligned, shifted, guarded };

// The strip of source rows that a tile reads: `words` words a row from `base` on, the first pixel `lead` bytes in.
// Rows that are not a multiple of four bytes apart start at any byte, so each word is put together from two.
struct Strip {
  const uint8_t* base;
  const uint8_t* begin;
  const uint8_t* end;
  int64_t pitch;
  int words;
  int lead;
  bool aligned;

  // How rows first … last can be read.
  __device__ Access access(int first, int last) const {
    const uint8_t* low = base + first * pitch;
    const uint8_t* high = base + last * pitch;
    const bool inside = low - 3 >= begin && high + 4 * (static_cast<int64_t>(words) + 1) <= end;
    return !inside ? Access::guarded : aligned ? Access::aligned : Access::shifted;
  }

  template <Access kAccess, int kWords>
  __device__ __forceinline__ void load(int row, uint32_t (&out)[kWords]) const {
    const uint8_t* at = base + row * pitch;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int index = w * kThreads + static_cast<int>(threadIdx.x);
      out[w] = 0;
      if (index >= words) continue;
      if constexpr (kAccess == Access::guarded) {
        out[w] = guarded_word(at + 4 * index, begin, end);
      } else if constexpr (kAccess == Access::aligned) {
        out[w] = __ldg(reinterpret_cast<const uint32_t*>(at) + index);
      } else {
        const auto shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) & 3U) * 8U;
        const auto* low = reinterpret_cast<const uint32_t*>(reinterpret_cast<uintptr_t>(at) & ~uintptr_t{3}) + index;
        out[w] = __funnelshift_r(__ldg(low), __ldg(low + 1), shift);
      }
    }
  }
};

template <int kWords>
__device__ __forceinline__ void keep_row(float* row, const float (&sums)[kWords][4], float inverse) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    auto* to = reinterpret_cast<float4*>(row) + w * kThreads + static_cast<int>(threadIdx.x);
    *to = make_float4(sums[w][0] * inverse, sums[w][1] * inverse, sums[w][2] * inverse, sums[w][3] * inverse);
  }
}

template <int kWords>
__device__ __forceinline__ void add_row(float (&sums)[kWords][4], const uint32_t (&words)[kWords], float weight) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
#pragma unroll
    for (int b = 0; b < 4; ++b) sums[w][b] = fmaf(weight, byte_of(words[w], b), sums[w][b]);
  }
}

template <int kTaps>
struct RowTable {
  float weight[kTaps][kChunk];
  int output[kChunk];
};

// Vertical pass when shrinking with antialias: rows [from, to) of the resized picture into shared memory.
template <Access kAccess, int kWords, bool kCubic>
__device__ __forceinline__ void shrink_rows_by(const Strip& strip, int begin, int end, double scale, int from, int to,
                                               RowTable<4>& table, float* rows) {
  constexpr int kTaps = kCubic ? 4 : 2;
  constexpr int kAhead = kWords == 1 ? 8 : 4;
  constexpr int kRowFloats = kWords * kThreads * 4;
  const double inverse_scale = 1.0 / scale;

  float sums[kTaps][kWords][4] = {};
  float total[kTaps] = {};
  int current = 0;  // the output of sums[0]
  const auto finish = [&] {
    if (current >= from && current < to) {
      keep_row(rows + (current - from) * kRowFloats, sums[0], 1.0F / total[0]);
    }
#pragma unroll
    for (int m = 0; m + 1 < kTaps; ++m) {
      total[m] = total[m + 1];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
#pragma unroll
        for (int b = 0; b < 4; ++b) sums[m][w][b] = sums[m + 1][w][b];
      }
    }
    total[kTaps - 1] = 0.0F;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int b = 0; b < 4; ++b) sums[kTaps - 1][w][b] = 0.0F;
    }
    ++current;
  };

  for (int chunk = begin; chunk < end; chunk += kChunk) {
    const int count = min(kChunk, end - chunk);
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count) {
      const double u = (chunk + static_cast<int>(threadIdx.x) + 0.5) * inverse_scale - 0.5;
      const double whole = floor(u);
      const float f = static_cast<float>(u - whole);
      table.output[threadIdx.x] = static_cast<int>(whole) - (kTaps / 2 - 1);
#pragma unroll
      for (int m = 0; m < kTaps; ++m) {
        table.weight[m][threadIdx.x] = filter<kCubic, false>(f + static_cast<float>(kTaps / 2 - 1 - m));
      }
    }
    __syncthreads();
    if (chunk == begin) current = table.output[0];
    for (int r = 0; r < count; r += kAhead) {
      uint32_t words[kAhead][kWords];
      const int last = min(r + kAhead, count) - 1;
#pragma unroll
      for (int a = 0; a < kAhead; ++a) strip.load<kAccess, kWords>(chunk + min(r + a, last), words[a]);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (r + a > last) break;
        while (table.output[r + a] > current) finish();
#pragma unroll
        for (int m = 0; m < kTaps; ++m) {
          const float weight = table.weight[m][r + a];
          total[m] += weight;
          add_row<kWords>(sums[m], words[a], weight);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kTaps; ++m) finish();
}

template <int kWords, bool kCubic>
__device__ void shrink_rows(const Strip& strip, int in, double scale, int from, int to, RowTable<4>& table,
                            float* rows) {
  constexpr int kTaps = kCubic ? 4 : 2;
  // A row too many at either end adds to outputs of other tiles only.
  const int begin = max(static_cast<int>(floor((from - kTaps / 2 + 0.5) * scale - 0.5)), 0);
  const int end = min(static_cast<int>(ceil((to + kTaps / 2 - 0.5) * scale - 0.5)) + 1, in);
  switch (strip.access(begin, end - 1)) {
    case Access::aligned:
      return shrink_rows_by<Access::aligned, kWords, kCubic>(strip, begin, end, scale, from, to, table, rows);
    case Access::shifted:
      return shrink_rows_by<Access::shifted, kWords, kCubic>(strip, begin, end, scale, from, to, table, rows);
    case Access::guarded:
      return shrink_rows_by<Access::guarded, kWords, kCubic>(strip, begin, end, scale, from, to, table, rows);
  }
}

// Vertical pass when enlarging or without antialias: each output row takes its two or four source rows.
template <Access kAccess, int kWords, bool kCubic, bool kPlain>
__device__ __forceinline__ void gather_rows_by(const Strip& strip, int in, double scale, int from, int to,
                                               float* rows) {
  constexpr int kTaps = kCubic ? 4 : 2;
  constexpr int kRowFloats = kWords * kThreads * 4;
  const float step = filter_step<kPlain>(scale);
  for (int i = from; i < to; ++i) {
    const Window window = window_of<kCubic, kPlain>(i, in, scale);
    float sums[kWords][4] = {};
    uint32_t words[kTaps][kWords];
#pragma unroll
    for (int n = 0; n < kTaps; ++n) {
      strip.load<kAccess, kWords>(min(max(window.first + n, 0), in - 1), words[n]);
    }
#pragma unroll
    for (int n = 0; n < kTaps; ++n) {
      if (n < window.count) {
        add_row<kWords>(sums, words[n], filter<kCubic, kPlain>(fmaf(static_cast<float>(n), step, window.start)));
      }
    }
    keep_row(rows + (i - from) * kRowFloats, sums, window.inverse);
  }
}

template <int kWords, bool kCubic, bool kPlain>
__device__ void gather_rows(const Strip& strip, int in, double scale, int from, int to, float* rows) {
  const Window low = window_of<kCubic, kPlain>(from, in, scale);
  const Window high = window_of<kCubic, kPlain>(to - 1, in, scale);
  switch (strip.access(max(low.first, 0), min(high.first + (kCubic ? 4 : 2), in) - 1)) {
    case Access::aligned:
      return gather_rows_by<Access::aligned, kWords, kCubic, kPlain>(strip, in, scale, from, to, rows);
    case Access::shifted:
      return gather_rows_by<Access::shifted, kWords, kCubic, kPlain>(strip, in, scale, from, to, rows);
    case Access::guarded:
      return gather_rows_by<Access::guarded, kWords, kCubic, kPlain>(strip, in, scale, from, to, rows);
  }
}

}  // namespace tritonstack::image
