// Resampling for elements of at most 16 bits, with crop, padding, normalisation, layout and cast in one launch a batch.
//
// The idea: weights are short integers made by the host (core/short_tables.h), so that one dp2a instruction adds two rows'
// bytes to a sum, with no conversion. A group of threads owns 8 output rows of a strip of columns; each thread owns a few
// words of every source row. Two rows are interleaved by two permutations a word and added to two running output rows,
// and a complete row goes to shared memory in 16 bits. The horizontal pass takes pairs of pixels from there: a warp does
// eight rows of four times four columns, so that neither its reads nor its vectors of results meet in a bank or in a sector.
//
// The next rows are loaded before the present ones are added. Only rows and columns under the crop are read. Errors stay
// below a twentieth of a pixel value's step; the elements' own rounding is of that size.

#include <cuda_pipeline_primitives.h>

#include "gpu/cuda_handles.h"
#include "gpu/kernels.h"
#include "gpu/sample_writer.cuh"

namespace tritonstack::image {

namespace {

constexpr int kWords = kShortWords;
// Sums are cut by 8 bits on their way to shared memory; half of that rounds.
constexpr int kCut = 8;
constexpr int kHalf = 1 << (kCut - 1);
// Words of one step's rows in the ring.
constexpr int kStage = 2 * kWords * kShortThreads;

template <bool kSigned>
__device__ __forceinline__ int dot_low(uint32_t weights, uint32_t bytes, int sum) {
  int result;
  if constexpr (kSigned) {
    asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(bytes), "r"(sum));
  } else {
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(bytes), "r"(sum));
  }
  return result;
}

template <bool kSigned>
__device__ __forceinline__ int dot_high(uint32_t weights, uint32_t bytes, int sum) {
  int result;
  if constexpr (kSigned) {
    asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(bytes), "r"(sum));
  } else {
    asm("dp2a.hi.u32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(bytes), "r"(sum));
  }
  return result;
}

// A word of which some bytes may lie outside of the readable memory.
__device__ uint32_t guarded(const uint8_t* at, const uint8_t* begin, const uint8_t* end) {
  uint32_t word = 0;
  for (int b = 0; b < 4; ++b) {
    if (at + b >= begin && at + b < end) word |= static_cast<uint32_t>(at[b]) << (8 * b);
  }
  return word;
}

// How a tile reads its words: rows that start at any byte need two of them for each, and at the ends of the readable
// memory every byte is looked at.
enum class Access { aligned, shifted, guarded };

// What a thread reads of each row: the words `first`, `first` + 32, … that lie before `words`. A warp owns neighbouring
// words, so a row costs one address whatever its width.
struct Strip {
  const uint8_t* base;  // word `first` of row 0
  const uint8_t* begin;
  const uint8_t* end;
  uint32_t pitch;
  int last_row;
  int first;
  int words;

  __device__ __forceinline__ bool has(int w) const { return first + 32 * w < words; }

  template <Access kAccess>
  __device__ __forceinline__ void load_row(int row, uint32_t (&out)[kWords]) const {
    const uint8_t* at = base + uint64_t{static_cast<uint32_t>(row)} * pitch;
    const auto shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) & 3U);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      out[w] = 0;
      if (!has(w)) continue;
      if constexpr (kAccess == Access::aligned) {
        out[w] = __ldg(reinterpret_cast<const uint32_t*>(at) + 32 * w);
      } else if constexpr (kAccess == Access::shifted) {
        const auto* low = reinterpret_cast<const uint32_t*>(at - shift) + 32 * w;
        out[w] = __funnelshift_r(__ldg(low), __ldg(low + 1), shift * 8U);
      } else {
        out[w] = guarded(at + 128 * w, begin, end);
      }
    }
  }

  template <Access kAccess>
  __device__ __forceinline__ void load(int row, uint32_t (&out)[2][kWords]) const {
    load_row<kAccess>(row, out[0]);
    load_row<kAccess>(min(row + 1, last_row), out[1]);
  }
};

using Sums = int[kWords][4];

__device__ __forceinline__ void restart(Sums& sums) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
#pragma unroll
    for (int b = 0; b < 4; ++b) sums[w][b] = kHalf;
  }
}

template <bool kSigned>
__device__ __forceinline__ void add(Sums& sums, uint32_t weights, const uint32_t (&low)[kWords],
                                    const uint32_t (&high)[kWords]) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    sums[w][0] = dot_low<kSigned>(weights, low[w], sums[w][0]);
    sums[w][1] = dot_high<kSigned>(weights, low[w], sums[w][1]);
    sums[w][2] = dot_low<kSigned>(weights, high[w], sums[w][2]);
    sums[w][3] = dot_high<kSigned>(weights, high[w], sums[w][3]);
  }
}

// Rows on their way. Aligned words go through a ring in shared memory, several steps ahead and without registers; each
// thread reads back only what it asked for itself, so no barrier is needed. Others are loaded one step ahead.
template <Access kAccess>
class RowQueue {
 public:
  __device__ __forceinline__ RowQueue(const Strip& strip, const int4* steps, int first, int last, uint8_t* ring)
      : strip_(strip), steps_(steps), ahead_(first), last_(last), slot_(reinterpret_cast<uint32_t*>(ring) + threadIdx.x) {
    if constexpr (kAccess == Access::aligned) {
      end_ = slot_ + kShortStages * kStage;
      begin_ = slot_;
      for (int n = 0; n < kShortStages - 1; ++n) ask();
    } else {
      strip_.load<kAccess>(__ldg(&steps_[first].x), coming_);
    }
  }

  // The words of the next step's two rows.
  __device__ __forceinline__ void take(uint32_t (&words)[2][kWords]) {
    if constexpr (kAccess == Access::aligned) {
      ask();
      __pipeline_wait_prior(kShortStages - 1);
#pragma unroll
      for (int w = 0; w < 2 * kWords; ++w) words[w / kWords][w % kWords] = slot_[w * kShortThreads];
    } else {
#pragma unroll
      for (int w = 0; w < 2 * kWords; ++w) words[w / kWords][w % kWords] = coming_[w / kWords][w % kWords];
      ahead_ = min(ahead_ + 1, last_);
      strip_.load<kAccess>(__ldg(&steps_[ahead_].x), coming_);
    }
  }

 private:
  // Asks for the rows of one more step and moves on by a slot: the one asked for now is read kShortStages - 1 calls later,
  // and the one after it is read next.
  __device__ __forceinline__ void ask() {
    if (ahead_ <= last_) {
      const int row = __ldg(&steps_[ahead_].x);
      ask_row(row, slot_);
      ask_row(min(row + 1, strip_.last_row), slot_ + kWords * kShortThreads);
    }
    __pipeline_commit();
    ++ahead_;
    slot_ += kStage;
    if (slot_ == end_) slot_ = begin_;
  }

  __device__ __forceinline__ void ask_row(int row, uint32_t* to) const {
    const uint8_t* at = strip_.base + uint64_t{static_cast<uint32_t>(row)} * strip_.pitch;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (strip_.has(w)) __pipeline_memcpy_async(to + w * kShortThreads, at + 128 * w, 4);
    }
  }

  const Strip& strip_;
  const int4* steps_;
  int ahead_;
  int last_;
  uint32_t* slot_;
  uint32_t* begin_ = nullptr;
  uint32_t* end_ = nullptr;
  uint32_t coming_[2][kWords];
};

// The vertical pass of one group: output rows [from, to) of the program into shared memory.
template <Access kAccess, bool kCubic>
__device__ __forceinline__ void sum_rows(const Strip& strip, const ShortForm& form, int from, int to, uint8_t* ring,
                                         uint8_t* rows) {
  const auto* steps = reinterpret_cast<const int4*>(form.steps);
  // The cubic has no running next row, so it begins with its own.
  int step = __ldg(form.starts + from + (kCubic ? 1 : 0));
  const int last = __ldg(form.starts + to + 1) - 1;
  int4 now = __ldg(steps + step);
  RowQueue<kAccess> queue(strip, steps, step, last, ring);
  int output = kCubic ? from : from - 1;

  const auto walk = [&](Sums& sums, Sums& following) {
    bool complete = false;
    do {
      uint32_t present[2][kWords];
      queue.take(present);
      step = min(step + 1, last);
      const int4 next = __ldg(steps + step);
      uint32_t low[kWords];
      uint32_t high[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        low[w] = __byte_perm(present[0][w], present[1][w], 0x5140);
        high[w] = __byte_perm(present[0][w], present[1][w], 0x7362);
      }
      add<kCubic>(sums, static_cast<uint32_t>(now.y), low, high);
      if constexpr (!kCubic) add<false>(following, static_cast<uint32_t>(now.z), low, high);
      complete = now.w != 0;
      now = next;
    } while (!complete);
    if (output >= from) {
      auto* to_row = reinterpret_cast<uint2*>(rows + (output - from) * form.row_bytes) + strip.first;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        // Bytes 1 and 2 of each sum.
        const auto packed = make_uint2(
            __byte_perm(static_cast<uint32_t>(sums[w][0]), static_cast<uint32_t>(sums[w][1]), 0x6521),
            __byte_perm(static_cast<uint32_t>(sums[w][2]), static_cast<uint32_t>(sums[w][3]), 0x6521));
        if (strip.has(w)) to_row[32 * w] = packed;
      }
    }
    restart(sums);
    ++output;
  };

  Sums even;
  Sums odd;
  restart(even);
  restart(odd);
  while (output < to) {
    walk(even, kCubic ? even : odd);
    if (kCubic) continue;
    if (output >= to) break;
    walk(odd, even);
  }
}

__device__ __forceinline__ int low_half(uint32_t pair) { return static_cast<int16_t>(pair & 0xFFFFU); }
__device__ __forceinline__ int high_half(uint32_t pair) { return static_cast<int>(pair) >> 16; }

// The horizontal pass and everything behind it for the covered part of a tile.
template <bool kCubic>
__device__ __forceinline__ void write_columns(const FusedOperation& operation, const FusedImage& image,
                                              const Tile& tile, const uint8_t* shared, int y0, int y1, int x0, int x1,
                                              int lead) {
  const ShortForm& form = image.short_form;
  const auto* weights = reinterpret_cast<const uint32_t*>(shared + form.weights_at);
  const auto* firsts = reinterpret_cast<const int32_t*>(shared + form.firsts_at);
  const int columns = x1 - x0;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int across = (columns + 15) / 16;
  const int pairs = form.pairs;
  constexpr float kPixel = 1.0F / (1 << ((kCubic ? kCubicRowBits : kLinearRowBits) - kCut + kColumnBits));
  for (int item = warp; item < across * (form.tile_rows / 8); item += kShortThreads / 32) {
    const int y = tile.row + item / across * 8 + lane % 8;
    const int x = (item % across * 4 + lane / 8) * 4;
    if (y < y0 || y >= y1 || x >= columns) continue;
    const auto* row = reinterpret_cast<const uint32_t*>(shared + (y - tile.row) * form.row_bytes);
    float pixels[4][3];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = min(x + j, columns - 1);
      const uint32_t* at = row + (3 * (firsts[column] - tile.first) + lead) / 2;
      const uint32_t* weight = weights + column * pairs;
      int sums[3] = {};
#pragma unroll 2
      for (int n = 0; n < pairs; ++n) {
        const uint32_t both = weight[n];
        const int even = low_half(both);
        const int odd = high_half(both);
        const uint32_t first = at[3 * n];
        const uint32_t second = at[3 * n + 1];
        const uint32_t third = at[3 * n + 2];
        sums[0] += low_half(first) * even + high_half(second) * odd;
        sums[1] += high_half(first) * even + low_half(third) * odd;
        sums[2] += low_half(second) * even + high_half(third) * odd;
      }
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        float value = static_cast<float>(sums[c]) * kPixel;
        if constexpr (kCubic) value = fminf(fmaxf(value, 0.0F), 255.0F);
        if (operation.round_u8) value = rintf(value);
        pixels[j][c] = value;
      }
    }
    write_four(operation, image, y, x0 + x, min(columns - x, 4), pixels);
  }
}

template <bool kCubic>
__global__ void __launch_bounds__(kShortThreads, 3)
    short_kernel(const __grid_constant__ FusedOperation operation, const FusedImage* __restrict__ images,
                 const Tile* __restrict__ tiles) {
  extern __shared__ uint4 shared_memory[];
  auto* ring = reinterpret_cast<uint8_t*>(shared_memory);
  uint8_t* shared = ring + kShortRingBytes;
  const Tile tile = tiles[blockIdx.x];
  const FusedImage& image = images[tile.image];
  const ShortForm& form = image.short_form;
  write_padding(operation, image, tile, form.tile_rows, form.tile_columns);
  const int y0 = max(tile.row, image.covered_top);
  const int y1 = min(tile.row + form.tile_rows, image.covered_bottom);
  const int x0 = max(tile.column, image.covered_left);
  const int x1 = min(tile.column + form.tile_columns, image.covered_right);
  if (y0 >= y1 || x0 >= x1) return;

  // The columns' tables arrive while rows are summed up.
  {
    const int from = x0 - image.covered_left;
    const int count = (x1 - x0) * form.pairs;
    auto* weights = reinterpret_cast<uint32_t*>(shared + form.weights_at);
    for (int n = static_cast<int>(threadIdx.x); n < count; n += kShortThreads) {
      __pipeline_memcpy_async(weights + n, form.weights + from * form.pairs + n, 4);
    }
    auto* firsts = reinterpret_cast<int32_t*>(shared + form.firsts_at);
    for (int n = static_cast<int>(threadIdx.x); n < x1 - x0; n += kShortThreads) {
      __pipeline_memcpy_async(firsts + n, form.firsts + from + n, 4);
    }
    __pipeline_commit();
  }

  Strip strip;
  strip.base = image.source + int64_t{tile.first} * 3;
  strip.begin = image.begin;
  strip.end = image.end;
  strip.pitch = static_cast<uint32_t>(image.pitch);
  strip.last_row = image.in_height - 1;
  // Pairs of sums are read as words, so a row may begin at an even byte of a word only.
  const bool aligned = image.pitch % 4 == 0 && reinterpret_cast<uintptr_t>(strip.base) % 2 == 0;
  const int lead = aligned ? static_cast<int>(reinterpret_cast<uintptr_t>(strip.base) & 3U) : 0;
  strip.base -= lead;
  strip.words = ((tile.end - tile.first) * 3 + lead + 3) / 4;

  const int group = static_cast<int>(threadIdx.x) / form.group_threads;
  const int thread = static_cast<int>(threadIdx.x) % form.group_threads;
  const int from = max(tile.row + group * kShortRows, y0);
  const int to = min(tile.row + (group + 1) * kShortRows, y1);
  if (from < to && group < form.tile_rows / kShortRows) {
    const int first_output = from - image.covered_top;
    const int last_output = to - image.covered_top;
    const int low_row = __ldg(&form.steps[__ldg(form.starts + first_output)].row);
    const int high_row = min(__ldg(&form.steps[__ldg(form.starts + last_output + 1) - 1].row) + 1, strip.last_row);
    const bool inside = strip.base + low_row * image.pitch - 3 >= strip.begin &&
                        strip.base + high_row * image.pitch + 4 * (int64_t{strip.words} + 1) <= strip.end;
    strip.first = thread / 32 * 32 * kWords + thread % 32;
    strip.base += 4 * strip.first;
    uint8_t* rows = shared + (from - tile.row) * form.row_bytes;
    if (!inside) {
      sum_rows<Access::guarded, kCubic>(strip, form, first_output, last_output, ring, rows);
    } else if (aligned) {
      sum_rows<Access::aligned, kCubic>(strip, form, first_output, last_output, ring, rows);
    } else {
      sum_rows<Access::shifted, kCubic>(strip, form, first_output, last_output, ring, rows);
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  write_columns<kCubic>(operation, image, tile, shared, y0, y1, x0, x1, lead);
}

template <bool kCubic>
void launch(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
            size_t shared_bytes, cudaStream_t stream) {
  check(cudaFuncSetAttribute(short_kernel<kCubic>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kShortRingBytes + kShortSharedBytes)),
        "shared memory of the resampling kernel");
  short_kernel<kCubic>
      <<<static_cast<unsigned>(tile_count), kShortThreads, kShortRingBytes + shared_bytes, stream>>>(operation, images, tiles);
  check(cudaGetLastError(), "launch of the resampling kernel");
}

}  // namespace

void launch_short(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
                  size_t shared_bytes, cudaStream_t stream) {
  if (tile_count == 0) return;
  if (operation.interpolation == Interpolation::bicubic) {
    return launch<true>(operation, images, tiles, tile_count, shared_bytes, stream);
  }
  launch<false>(operation, images, tiles, tile_count, shared_bytes, stream);
}

}  // namespace tritonstack::image
