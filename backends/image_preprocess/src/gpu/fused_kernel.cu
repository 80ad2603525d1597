// Resampling in float, crop, padding, normalisation, layout and element type in one pass over a batch.
//
// The idea: a block owns a few output rows and a strip of output columns. The vertical pass comes first and runs on raw
// bytes: neighbouring threads read neighbouring words of a source row, so all loads are coalesced, and the weights of a
// row are the same for all threads. When shrinking, source row k lies between the centres of the outputs j and j + 1,
// where u = (2k + 1) · out / (2 in) - 1/2 and j = ⌊u⌋; with f = u - j the triangle filter gives it the weights 1 - f and
// f for these two outputs and 0 for all others (bicubic: four outputs). So each byte is read once by its block, added to
// two running rows, and a row that is complete moves to shared memory. The horizontal pass takes it from there, at a
// fraction of the source's size. Sums of weights are carried along and divided out, which is how Pillow and torchvision
// treat windows that the border cuts. Windows of any width work: rows are walked in chunks; a strip of one column that
// is still too wide for the block's memory is summed up by the whole block, output by output.
//
// Only rows and columns under the crop are read.

#include <cmath>
#include <string>

#include "gpu/cuda_handles.h"
#include "gpu/kernels.h"
#include "gpu/sample_writer.cuh"

namespace tritonstack::image {

namespace {

// Source rows whose weights are prepared at a time.
constexpr int kChunk = 128;

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

// A triangle's weights are positive and sum to 1, so only the cubic can leave 0 … 255.
template <bool kClamp>
__device__ __forceinline__ void write_pixel(const FusedOperation& operation, const FusedImage& image, int y, int x,
                                            const float (&pixel)[3]) {
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    float value = operation.bgr ? pixel[2 - c] : pixel[c];
    if constexpr (kClamp) value = fminf(fmaxf(value, 0.0F), 255.0F);
    if (operation.round_u8) value = rintf(value);
    store(image.output, element_offset(image, operation.nhwc, y, x, c), operation.element,
          fmaf(value, operation.scale[c], operation.shift[c]));
  }
}

// For strips that do not fit the shared memory: the whole block sums up one output at a time.
template <bool kCubic, bool kPlain>
__device__ void sum_up_outputs(const FusedOperation& operation, const FusedImage& image, int y0, int y1, int x0,
                               int x1) {
  __shared__ float partial[3][kThreads / 32];
  const float row_step = filter_step<kPlain>(image.row_scale);
  const float column_step = filter_step<kPlain>(image.column_scale);
  for (int y = y0; y < y1; ++y) {
    const Window rows = window_of<kCubic, kPlain>(y - image.top, image.in_height, image.row_scale);
    for (int x = x0; x < x1; ++x) {
      const Window columns = window_of<kCubic, kPlain>(x - image.left, image.in_width, image.column_scale);
      float sums[3] = {};
      for (int r = 0; r < rows.count; ++r) {
        const int k = min(max(rows.first + r, 0), image.in_height - 1);
        const float row_weight = filter<kCubic, kPlain>(fmaf(static_cast<float>(r), row_step, rows.start));
        for (int n = static_cast<int>(threadIdx.x); n < columns.count; n += kThreads) {
          const int column = min(max(columns.first + n, 0), image.in_width - 1);
          const float weight =
              row_weight * filter<kCubic, kPlain>(fmaf(static_cast<float>(n), column_step, columns.start));
          const uint8_t* at = image.source + k * image.pitch + int64_t{column} * 3;
          for (int c = 0; c < 3; ++c) sums[c] = fmaf(weight, static_cast<float>(__ldg(at + c)), sums[c]);
        }
      }
      for (int c = 0; c < 3; ++c) {
        for (int offset = 16; offset > 0; offset /= 2) sums[c] += __shfl_down_sync(~0U, sums[c], offset);
        if (threadIdx.x % 32 == 0) partial[c][threadIdx.x / 32] = sums[c];
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        float pixel[3] = {};
        for (int c = 0; c < 3; ++c) {
          for (int w = 0; w < kThreads / 32; ++w) pixel[c] += partial[c][w];
          pixel[c] *= rows.inverse * columns.inverse;
        }
        write_pixel<kCubic>(operation, image, y, x, pixel);
      }
      __syncthreads();
    }
  }
}

// What the resized picture does not cover.
__device__ void write_padding(const FusedOperation& operation, const FusedImage& image, const Tile& tile, int rows) {
  const int bottom = min(tile.row + rows, image.out_height);
  const int right = min(tile.column + image.tile_columns, image.out_width);
  if (tile.row >= image.covered_top && bottom <= image.covered_bottom && tile.column >= image.covered_left &&
      right <= image.covered_right) {
    return;
  }
  const float value = static_cast<float>(operation.pad_value);
  const float pixel[3] = {value, value, value};
  for (int y = tile.row; y < bottom; ++y) {
    const bool inside = y >= image.covered_top && y < image.covered_bottom;
    for (int x = tile.column + static_cast<int>(threadIdx.x); x < right; x += kThreads) {
      if (!inside || x < image.covered_left || x >= image.covered_right) write_pixel<false>(operation, image, y, x, pixel);
    }
  }
}

template <int kWords, bool kCubic, bool kPlain>
__global__ void __launch_bounds__(kThreads, kCubic ? (kWords == 1 ? 3 : 2) : (kWords == 1 ? 4 : 3))
    fused_kernel(const __grid_constant__ FusedOperation operation, const FusedImage* __restrict__ images,
                 const Tile* __restrict__ tiles) {
  constexpr int kRowFloats = kWords * kThreads * 4;
  constexpr int kRows = kFusedRows<kWords>;
  extern __shared__ float4 shared_rows[];
  __shared__ RowTable<4> table;
  __shared__ Window windows[kThreads];
  float* rows = reinterpret_cast<float*>(shared_rows);

  const Tile tile = tiles[blockIdx.x];
  const FusedImage& image = images[tile.image];
  write_padding(operation, image, tile, kRows);
  const int y0 = max(tile.row, image.covered_top);
  const int y1 = min(tile.row + kRows, image.covered_bottom);
  const int x0 = max(tile.column, image.covered_left);
  const int x1 = min(tile.column + image.tile_columns, image.covered_right);
  if (y0 >= y1 || x0 >= x1) return;

  const int in_width = image.in_width;
  const int columns = x1 - x0;
  if (static_cast<int>(threadIdx.x) < columns) {
    windows[threadIdx.x] = window_of<kCubic, kPlain>(x0 - image.left + static_cast<int>(threadIdx.x), in_width,
                                                     image.column_scale);
  }
  __syncthreads();
  const int first = min(max(windows[0].first, 0), in_width - 1);
  const int last = min(windows[columns - 1].first + windows[columns - 1].count - 1, in_width - 1);

  Strip strip;
  strip.base = image.source + int64_t{first} * 3;
  strip.begin = image.begin;
  strip.end = image.end;
  strip.pitch = image.pitch;
  strip.aligned = image.pitch % 4 == 0;
  strip.lead = strip.aligned ? static_cast<int>(reinterpret_cast<uintptr_t>(strip.base) & 3U) : 0;
  strip.base -= strip.lead;
  strip.words = ((last - first + 1) * 3 + strip.lead + 3) / 4;
  if (strip.words > kWords * kThreads) {
    sum_up_outputs<kCubic, kPlain>(operation, image, y0, y1, x0, x1);
    return;
  }

  if (!kPlain && image.in_height >= image.resized_height) {
    shrink_rows<kWords, kCubic>(strip, image.in_height, image.row_scale, y0 - image.top, y1 - image.top, table, rows);
  } else {
    gather_rows<kWords, kCubic, kPlain>(strip, image.in_height, image.row_scale, y0 - image.top, y1 - image.top, rows);
  }
  __syncthreads();

  const float step = filter_step<kPlain>(image.column_scale);
  // Walks all pixels of the tile without a division for each of them.
  const int row_jump = kThreads / columns;
  const int column_jump = kThreads % columns;
  int row = static_cast<int>(threadIdx.x) / columns;
  int column = static_cast<int>(threadIdx.x) % columns;
  while (row < y1 - y0) {
    const Window window = windows[column];
    const float* from = rows + row * kRowFloats + strip.lead;
    float pixel[3] = {};
    for (int n = 0; n < window.count; ++n) {
      const float weight = filter<kCubic, kPlain>(fmaf(static_cast<float>(n), step, window.start));
      int k = window.first + n;
      if constexpr (kPlain) k = min(max(k, 0), in_width - 1);
      const float* at = from + (k - first) * 3;
#pragma unroll
      for (int c = 0; c < 3; ++c) pixel[c] = fmaf(weight, at[c], pixel[c]);
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) pixel[c] *= window.inverse;
    write_pixel<kCubic>(operation, image, y0 + row, x0 + column, pixel);
    row += row_jump;
    column += column_jump;
    if (column >= columns) {
      column -= columns;
      ++row;
    }
  }
}

template <int kWords, bool kCubic, bool kPlain>
void launch(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
            cudaStream_t stream) {
  constexpr size_t kShared = sizeof(float) * kWords * kThreads * 4 * kFusedRows<kWords>;
  check(cudaFuncSetAttribute(fused_kernel<kWords, kCubic, kPlain>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kShared)),
        "shared memory of the resampling kernel");
  fused_kernel<kWords, kCubic, kPlain>
      <<<static_cast<unsigned>(tile_count), kThreads, kShared, stream>>>(operation, images, tiles);
  check(cudaGetLastError(), "launch of the resampling kernel");
}

template <int kWords>
void launch_for(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
                cudaStream_t stream) {
  const bool cubic = operation.interpolation == Interpolation::bicubic;
  if (cubic && operation.antialias) return launch<kWords, true, false>(operation, images, tiles, tile_count, stream);
  if (cubic) return launch<kWords, true, true>(operation, images, tiles, tile_count, stream);
  if (operation.antialias) return launch<kWords, false, false>(operation, images, tiles, tile_count, stream);
  return launch<kWords, false, true>(operation, images, tiles, tile_count, stream);
}

}  // namespace

void launch_fused(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
                  int words_per_thread, cudaStream_t stream) {
  if (tile_count == 0) return;
  if (words_per_thread == 1) return launch_for<1>(operation, images, tiles, tile_count, stream);
  launch_for<kMaxWordsPerThread>(operation, images, tiles, tile_count, stream);
}

}  // namespace tritonstack::image
