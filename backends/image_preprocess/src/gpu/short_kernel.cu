// Resampling for elements of at most 16 bits, with crop, padding, normalisation, layout and cast in one launch a batch.
//
// The idea: weights are short integers made by the host (core/short_tables.h), so that one dp2a instruction adds two pixels'
// bytes to a sum, with no conversion. A group of warps owns 8 output rows of a strip of columns, each thread four pixels of
// every source row. Source rows come through a ring in shared memory, several steps ahead. Two of them are interleaved by
// two permutations a word and added to two running output rows. A complete row goes to shared memory in 16 bits, laid out
// for the horizontal pass: one word holds the high bytes and the low bytes of a channel of two neighbouring pixels, which
// are two dp2a again. There, a warp does eight rows of four times four columns, so that neither its reads nor its vectors
// of results meet in a bank or in a sector.
//
// Only rows and columns under the crop are read. Errors stay below a twentieth of a pixel value's step; the elements' own
// rounding is of that size.

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

// The sum plus the two halves of `weights` times bytes 0 and 1 (low) or 2 and 3 (high) of `bytes`.
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

// As dot_low for signed weights and signed bytes.
__device__ __forceinline__ int dot_low_signed(uint32_t weights, uint32_t bytes, int sum) {
  int result;
  asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(bytes), "r"(sum));
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

// How a tile's rows lie in memory: each 16 bytes, 4 bytes, or anyhow aligned; or so near to the ends of the readable memory
// that every byte is looked at.
enum class Access { sixteen, four, any, guarded };

// Words of a warp in a source row, and the room for them in the ring: one word more where rows begin inside of words.
constexpr int kWarpWords = 32 * kWords;
constexpr int kRowWords = kWarpWords + 4;
constexpr int kStageWords = 2 * kRowWords;
static_assert(kShortRingBytes == size_t{kShortStages} * kStageWords * 4 * (kShortThreads / 32));

// What a warp reads of each row: `words` words from `base` on, which belongs to row 0.
struct Strip {
  const uint8_t* base;
  const uint8_t* begin;
  const uint8_t* end;
  uint32_t pitch;
  int last_row;
  int words;

  __device__ __forceinline__ const uint8_t* row(int row) const {
    return base + uint64_t{static_cast<uint32_t>(row)} * pitch;
  }
};

// Source rows on their way through the ring: a warp's lanes ask for words side by side, and each takes its own later.
template <Access kAccess>
class RowQueue {
 public:
  __device__ __forceinline__ RowQueue(const Strip& strip, const int4* steps, int first, int last, uint32_t* ring)
      : strip_(strip), steps_(steps), ahead_(first), last_(last), begin_(ring), slot_(ring) {
#pragma unroll
    for (int n = 0; n < kShortStages - 1; ++n) {
      ask(slot_);
      slot_ += kStageWords;
    }
    // The stage that is asked for while the first one is taken.
    free_ = slot_;
    slot_ = ring;
  }

  // The lane's words of the next step's two rows, of which `row` is the first.
  __device__ __forceinline__ void take(int row, uint32_t (&words)[2][kWords]) {
    __pipeline_wait_prior(kShortStages - 2);
    // What other lanes asked for is there as well, and all of them have taken what lay in the free stage.
    __syncwarp();
    ask(free_);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t* mine = slot_ + lane * kWords;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t raw[kWords + 1];
#pragma unroll
      for (int w = 0; w < kWords + (kAccess == Access::any ? 1 : 0); ++w) raw[w] = mine[r * kRowWords + w];
      if constexpr (kAccess == Access::any) {
        const auto shift = static_cast<uint32_t>(
            reinterpret_cast<uintptr_t>(strip_.row(r == 0 ? row : min(row + 1, strip_.last_row))) & 3U) * 8U;
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[r][w] = __funnelshift_r(raw[w], raw[w + 1], shift);
      } else {
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[r][w] = raw[w];
      }
    }
    free_ = slot_;
    slot_ += kStageWords;
    if (slot_ == begin_ + kShortStages * kStageWords) slot_ = begin_;
  }

 private:
  __device__ __forceinline__ void ask(uint32_t* to) {
    if (ahead_ <= last_) {
      const int row = __ldg(&steps_[ahead_].x);
      const int next = min(row + 1, strip_.last_row);
      if constexpr (kAccess == Access::sixteen) {
        // Quarters of the lanes' work: 16 bytes each, the first row's and then the second's.
        const int lane = static_cast<int>(threadIdx.x) % 32;
        constexpr int kVectors = kWarpWords / 4;
#pragma unroll
        for (int n = 0; n < 2 * kVectors; n += 32) {
          const int vector = n + lane;
          const int r = vector >= kVectors ? 1 : 0;
          const int word = (vector - r * kVectors) * 4;
          if (vector < 2 * kVectors && word < strip_.words) {
            __pipeline_memcpy_async(to + r * kRowWords + word, strip_.row(r == 0 ? row : next) + 4 * word, 16);
          }
        }
      } else {
        ask_row(row, to);
        ask_row(next, to + kRowWords);
      }
    }
    __pipeline_commit();
    ++ahead_;
  }

  __device__ __forceinline__ void ask_row(int row, uint32_t* to) const {
    const uint8_t* at = strip_.row(row);
    const int words = strip_.words + (kAccess == Access::any ? 1 : 0);
    if constexpr (kAccess == Access::any) at -= reinterpret_cast<uintptr_t>(at) & 3U;
#pragma unroll
    for (int w = 0; w < kWords + (kAccess == Access::any ? 1 : 0); ++w) {
      const int word = w * 32 + static_cast<int>(threadIdx.x) % 32;
      if (word >= words || word > kWarpWords) continue;
      if constexpr (kAccess == Access::guarded) {
        to[word] = guarded(at + 4 * word, strip_.begin, strip_.end);
      } else {
        __pipeline_memcpy_async(to + word, at + 4 * word, 4);
      }
    }
  }

  const Strip& strip_;
  const int4* steps_;
  int ahead_;
  int last_;
  uint32_t* begin_;
  uint32_t* slot_;
  uint32_t* free_;
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

// The vertical pass of one warp: output rows [from, to) of the program into shared memory. `rows` is where the warp's words
// of the first of them go.
template <Access kAccess, bool kCubic>
__device__ __forceinline__ void sum_rows(const Strip& strip, const ShortForm& form, int from, int to, uint32_t* ring,
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
      queue.take(now.x, present);
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
      // Two pairs of pixels of three channels, of each the high bytes (2) and the low ones (1) of the sums.
      auto* to_row = reinterpret_cast<uint2*>(rows + (output - from) * form.row_bytes) + threadIdx.x % 32 * kWords;
      uint32_t pairs[2 * kWords];
#pragma unroll
      for (int n = 0; n < 2 * kWords; ++n) {
        const int even = n / 3 * 6 + n % 3;
        const int odd = even + 3;
        pairs[n] = __byte_perm(static_cast<uint32_t>(sums[even / 4][even % 4]),
                               static_cast<uint32_t>(sums[odd / 4][odd % 4]), 0x5162);
      }
      if (static_cast<int>(threadIdx.x % 32) * kWords < strip.words) {
#pragma unroll
        for (int n = 0; n < kWords; ++n) to_row[n] = make_uint2(pairs[2 * n], pairs[2 * n + 1]);
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

// The horizontal pass and everything behind it for the covered part of a tile.
template <bool kCubic>
__device__ __forceinline__ void write_columns(const FusedOperation& operation, const FusedImage& image,
                                              const Tile& tile, const uint8_t* shared, int y0, int y1, int x0, int x1) {
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
      const uint32_t* at = row + (firsts[column] - tile.first) / 2 * 3;
      const uint32_t* weight = weights + column * pairs;
      int high[3] = {};
      int low[3] = {};
#pragma unroll 2
      for (int n = 0; n < pairs; ++n) {
        const uint32_t both = weight[n];
#pragma unroll
        for (int c = 0; c < 3; ++c) {
          const uint32_t bytes = at[3 * n + c];
          high[c] = dot_low_signed(both, bytes, high[c]);
          low[c] = dot_high<true>(both, bytes, low[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        float value = static_cast<float>(high[c] * 256 + low[c]) * kPixel;
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
  auto* ring = reinterpret_cast<uint32_t*>(shared_memory);
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared_memory) + kShortRingBytes;
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

  const int group = static_cast<int>(threadIdx.x) / form.group_threads;
  const int warp = static_cast<int>(threadIdx.x) / 32 % (form.group_threads / 32);
  const int from = max(tile.row + group * kShortRows, y0);
  const int to = min(tile.row + (group + 1) * kShortRows, y1);
  const uint8_t* source = image.source + int64_t{tile.first} * 3;
  const int words = ((tile.end - tile.first) * 3 + 3) / 4 - warp * kWarpWords;
  if (from < to && group < form.tile_rows / kShortRows && words > 0) {
    Strip strip;
    strip.base = source + 4 * warp * kWarpWords;
    strip.begin = image.begin;
    strip.end = image.end;
    strip.pitch = static_cast<uint32_t>(image.pitch);
    strip.last_row = image.in_height - 1;
    strip.words = min(words, kWarpWords);
    const int first_output = from - image.covered_top;
    const int last_output = to - image.covered_top;
    const int low_row = __ldg(&form.steps[__ldg(form.starts + first_output)].row);
    const int high_row = min(__ldg(&form.steps[__ldg(form.starts + last_output + 1) - 1].row) + 1, strip.last_row);
    // Vectors may read 15 bytes more than asked for.
    const bool inside = strip.base + low_row * image.pitch - 3 >= strip.begin &&
                        strip.base + high_row * image.pitch + 4 * int64_t{strip.words} + 15 <= strip.end;
    const uint64_t together = reinterpret_cast<uintptr_t>(strip.base) | static_cast<uint64_t>(image.pitch);
    uint32_t* own_ring = ring + static_cast<int>(threadIdx.x) / 32 * kShortStages * kStageWords;
    uint8_t* rows = shared + (from - tile.row) * form.row_bytes + warp * kWarpWords * 8;
    if (!inside) {
      sum_rows<Access::guarded, kCubic>(strip, form, first_output, last_output, own_ring, rows);
    } else if (together % 16 == 0) {
      sum_rows<Access::sixteen, kCubic>(strip, form, first_output, last_output, own_ring, rows);
    } else if (together % 4 == 0) {
      sum_rows<Access::four, kCubic>(strip, form, first_output, last_output, own_ring, rows);
    } else {
      sum_rows<Access::any, kCubic>(strip, form, first_output, last_output, own_ring, rows);
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  write_columns<kCubic>(operation, image, tile, shared, y0, y1, x0, x1);
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
