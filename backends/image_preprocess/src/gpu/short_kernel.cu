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

#include <algorithm>

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

// Fours of columns that a warp makes at a time, in as many rows as a group has.
constexpr int kQuads = 32 / kGroupOutputs;

// Words of a warp in a source row, and the room for them in the ring: one word more where rows begin inside of words.
constexpr int kWarpWords = 32 * kWords;
constexpr int kRowWords = kWarpWords + 4;
constexpr int kStageWords = 2 * kRowWords;
// Vectors of 16 bytes in a warp's part of a row.
constexpr int kVectors = kWarpWords / 4;
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

// Steps of a group, 32 at a time in the lanes of a warp: one load for all of them, and no memory is touched in between.
class Steps {
 public:
  explicit __device__ __forceinline__ Steps(const RowStep* steps)
      : steps_(reinterpret_cast<const int4*>(steps) + threadIdx.x % 32) {
    own_ = __ldg(steps_);
  }

  // The step of the given number, which is that of the call before or the next one.
  __device__ __forceinline__ int4 at(int number) {
    turn_to(number);
    return {__shfl_sync(~0U, own_.x, number - begin_), __shfl_sync(~0U, own_.y, number - begin_),
            __shfl_sync(~0U, own_.z, number - begin_), __shfl_sync(~0U, own_.w, number - begin_)};
  }

 private:
  __device__ __forceinline__ void turn_to(int number) {
    if (number - begin_ < 32) return;
    begin_ = number;
    steps_ += 32;
    own_ = __ldg(steps_);
  }

  const int4* steps_;
  int4 own_;
  int begin_ = 0;
};

// Rows that a group's steps ask for, likewise, up to the last step.
class AskedRows {
 public:
  explicit __device__ __forceinline__ AskedRows(const RowStep* steps)
      : steps_(reinterpret_cast<const int4*>(steps) + threadIdx.x % 32) {
    fetch();
  }

  // The first row of the next step; -1 behind the last one.
  __device__ __forceinline__ int next() {
    if (number_ == 32) {
      steps_ += 32;
      if (ended_) {
        own_ = -1;
      } else {
        fetch();
      }
      number_ = 0;
    }
    return __shfl_sync(~0U, own_, number_++);
  }

 private:
  __device__ __forceinline__ void fetch() {
    const int4 step = __ldg(steps_);
    const uint32_t last = __ballot_sync(~0U, (step.w & kGroupComplete) != 0);
    // Lanes behind the first one with the last step ask for nothing.
    const uint32_t before = (1U << (threadIdx.x % 32)) - 1U;
    own_ = (last & before) != 0 ? -1 : step.x;
    ended_ = last != 0;
  }

  const int4* steps_;
  int own_ = -1;
  int number_ = 0;
  bool ended_ = false;
};

// Source rows on their way through the ring: a warp's lanes ask for words side by side, and each takes its own later.
template <Access kAccess>
class RowQueue {
 public:
  __device__ __forceinline__ RowQueue(const Strip& strip, const RowStep* steps, uint32_t* ring)
      : strip_(strip), rows_(steps), ring_(ring) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kAccess == Access::sixteen) {
      // The two rows are vectors of 16 bytes, first one row's and then the other's: a lane has the one of its number and
      // the one 32 behind, which is in the second row.
      second_row_ = lane >= kVectors;
      const int word = (lane - (second_row_ ? kVectors : 0)) * 4;
      const int later = (lane + 32 - kVectors) * 4;
      has_first_ = word < strip.words;
      has_later_ = later < min(strip.words, kWarpWords);
      first_ = strip.base + 4 * word;
      later_ = strip.base + 4 * later;
      to_first_ = word + (second_row_ ? kRowWords : 0);
      to_later_ = later + kRowWords;
    }
#pragma unroll
    for (int n = 0; n < kShortStages - 1; ++n) ask(n * kStageWords);
    free_ = (kShortStages - 1) * kStageWords;
    taken_ = 0;
  }

  // The lane's words of the next step's two rows, of which `row` is the first.
  __device__ __forceinline__ void take(int row, uint32_t (&words)[2][kWords]) {
    __pipeline_wait_prior(kShortStages - 2);
    // What other lanes asked for is there as well, and all of them have taken what lay in the free stage.
    __syncwarp();
    const uint32_t* mine = ring_ + taken_ + static_cast<int>(threadIdx.x) % 32 * kWords;
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
    ask(free_);
    free_ = taken_;
    taken_ = taken_ == (kShortStages - 1) * kStageWords ? 0 : taken_ + kStageWords;
  }

 private:
  __device__ __forceinline__ void ask(int stage) {
    const int row = rows_.next();
    if (row >= 0) {
      const int next = min(row + 1, strip_.last_row);
      uint32_t* to = ring_ + stage;
      if constexpr (kAccess == Access::sixteen) {
        const auto one = static_cast<uint32_t>(second_row_ ? next : row);
        if (has_first_) __pipeline_memcpy_async(to + to_first_, first_ + uint64_t{one} * strip_.pitch, 16);
        if (has_later_) {
          __pipeline_memcpy_async(to + to_later_, later_ + uint64_t{static_cast<uint32_t>(next)} * strip_.pitch, 16);
        }
      } else {
        ask_row(row, to);
        ask_row(next, to + kRowWords);
      }
    }
    __pipeline_commit();
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
  AskedRows rows_;
  uint32_t* ring_;
  int free_;
  int taken_;
  bool second_row_ = false;
  bool has_first_ = false;
  bool has_later_ = false;
  const uint8_t* first_ = nullptr;
  const uint8_t* later_ = nullptr;
  int to_first_ = 0;
  int to_later_ = 0;
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

// The vertical pass of one warp: a group of output rows into shared memory. `rows` is where the warp's words of the first of
// them go.
template <Access kAccess, bool kCubic>
__device__ __forceinline__ void sum_rows(const Strip& strip, const RowStep* group, int row_bytes, uint32_t* ring,
                                         uint8_t* rows) {
  RowQueue<kAccess> queue(strip, group, ring);
  Steps steps(group);
  int number = 0;
  bool ended = false;
  auto* to_row = reinterpret_cast<uint2*>(rows) + threadIdx.x % 32 * kWords;
  const bool writes = static_cast<int>(threadIdx.x % 32) * kWords < strip.words;
  // The triangle's first output is the one before the group.
  bool counts = kCubic;

  const auto walk = [&](Sums& sums, Sums& following) {
    bool complete = false;
    do {
      const int4 now = steps.at(number);
      uint32_t present[2][kWords];
      queue.take(now.x, present);
      ++number;
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
      ended = (now.w & kGroupComplete) != 0;
    } while (!complete);
    if (counts) {
      // Two pairs of pixels of three channels, of each the high bytes (2) and the low ones (1) of the sums.
      uint32_t pairs[2 * kWords];
#pragma unroll
      for (int n = 0; n < 2 * kWords; ++n) {
        const int even = n / 3 * 6 + n % 3;
        const int odd = even + 3;
        pairs[n] = __byte_perm(static_cast<uint32_t>(sums[even / 4][even % 4]),
                               static_cast<uint32_t>(sums[odd / 4][odd % 4]), 0x5162);
      }
      if (writes) {
#pragma unroll
        for (int n = 0; n < kWords; ++n) to_row[n] = make_uint2(pairs[2 * n], pairs[2 * n + 1]);
      }
      to_row = reinterpret_cast<uint2*>(reinterpret_cast<uint8_t*>(to_row) + row_bytes);
    }
    counts = true;
    restart(sums);
  };

  Sums even;
  Sums odd;
  restart(even);
  restart(odd);
  while (!ended) {
    walk(even, kCubic ? even : odd);
    if (kCubic || ended) continue;
    walk(odd, even);
  }
}

// One output of a row of pairs: three channels as integers.
template <bool kCubic, int kPairs>
__device__ __forceinline__ void sum_pairs(const uint32_t* at, const uint32_t* weights, int count, int (&sums)[3]) {
  int high[3] = {};
  int low[3] = {};
  const auto add_pair = [&](int n) {
    const uint32_t both = weights[n];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const uint32_t bytes = at[3 * n + c];
      high[c] = dot_low_signed(both, bytes, high[c]);
      low[c] = dot_high<true>(both, bytes, low[c]);
    }
  };
  if constexpr (kPairs > 0) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) add_pair(n);
  } else {
    for (int n = 0; n < count; ++n) add_pair(n);
  }
#pragma unroll
  for (int c = 0; c < 3; ++c) sums[c] = high[c] * 256 + low[c];
}

// The horizontal pass and everything behind it for the rows [y0, y1) of a strip. Windows of kPairs pairs; 0: of any number.
template <bool kCubic, int kPairs>
__device__ __forceinline__ void write_columns(const FusedOperation& operation, const FusedImage& image,
                                              const StripSpan& strip, const uint8_t* shared, int y0, int y1) {
  const ShortForm& form = image.short_form;
  const auto* weights = reinterpret_cast<const uint32_t*>(shared + form.weights_at);
  const auto* offsets = reinterpret_cast<const int4*>(shared + form.offsets_at);
  const int columns = strip.columns;
  const int x0 = image.covered_left + strip.column;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int across = (columns + 4 * kQuads - 1) / (4 * kQuads);
  const int pairs = kPairs > 0 ? kPairs : form.pairs;
  const int row_bytes = form.row_bytes;
  const int width = image.out_width;
  const int plane = image.out_height * width;
  void* output = image.output;
  constexpr float kPixel = 1.0F / (1 << ((kCubic ? kCubicRowBits : kLinearRowBits) - kCut + kColumnBits));
  // The usual case is written in vectors straight from the sums.
  const bool quick = !kCubic && !operation.round_u8 && !operation.nhwc && operation.element == ElementType::f16 &&
                     width % 4 == 0 && x0 % 4 == 0 && reinterpret_cast<uintptr_t>(output) % 8 == 0;
  int row = 0;
  for (int item = warp; row < y1 - y0; item += kShortThreads / 32) {
    while (item >= across) {
      item -= across;
      row += kGroupOutputs;
    }
    const int local = row + lane % kGroupOutputs;
    const int y = y0 + local;
    const int x = (item * kQuads + lane / kGroupOutputs) * 4;
    if (y >= y1 || x >= columns) continue;
    const auto* from = reinterpret_cast<const uint32_t*>(shared + local * row_bytes) - strip.first / 2 * 3;
    const uint32_t* weight = weights + x * pairs;
    int4 offset = offsets[x / 4];
    // Of the last four columns some may be behind the strip.
    if (x + 1 >= columns) offset.y = offset.x;
    if (x + 2 >= columns) offset.z = offset.x;
    if (x + 3 >= columns) offset.w = offset.x;
    int sums[4][3];
    sum_pairs<kCubic, kPairs>(from + offset.x, weight, pairs, sums[0]);
    sum_pairs<kCubic, kPairs>(from + offset.y, weight + pairs, pairs, sums[1]);
    sum_pairs<kCubic, kPairs>(from + offset.z, weight + 2 * pairs, pairs, sums[2]);
    sum_pairs<kCubic, kPairs>(from + offset.w, weight + 3 * pairs, pairs, sums[3]);
    if (quick && x + 4 <= columns) {
      const int at = y * width + x0 + x;
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const int channel = operation.bgr ? 2 - c : c;
        const float scale = operation.scale[channel] * kPixel;
        const float shift = operation.shift[channel];
        float values[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) values[j] = fmaf(static_cast<float>(sums[j][c]), scale, shift);
        store_four(output, at + channel * plane, ElementType::f16, values);
      }
      continue;
    }
    float pixels[4][3];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        float value = static_cast<float>(sums[j][c]) * kPixel;
        if constexpr (kCubic) value = fminf(fmaxf(value, 0.0F), 255.0F);
        if (operation.round_u8) value = rintf(value);
        pixels[j][c] = value;
      }
    }
    write_four(operation, image, y, x0 + x, min(columns - x, 4), pixels);
  }
}

// What the picture does not cover, shared out over its blocks.
__device__ void write_short_padding(const FusedOperation& operation, const FusedImage& image) {
  const float value = static_cast<float>(operation.pad_value);
  const float pixel[3] = {value, value, value};
  const int pixels = image.out_height * image.out_width;
  for (int n = static_cast<int>(blockIdx.x) * kShortThreads + static_cast<int>(threadIdx.x); n < pixels;
       n += image.short_form.tiles * kShortThreads) {
    const int y = n / image.out_width;
    const int x = n % image.out_width;
    if (y < image.covered_top || y >= image.covered_bottom || x < image.covered_left || x >= image.covered_right) {
      write_pixel<false>(operation, image, y, x, pixel);
    }
  }
}

// Copies `count` words to shared memory while others work; 16 bytes at a time where both sides allow it.
__device__ __forceinline__ void copy_words(void* to, const void* from, int count) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    const auto* vectors = static_cast<const uint4*>(from);
    // The tables' parts are filled up to 16 bytes.
    for (int n = thread; n < (count + 3) / 4; n += kShortThreads) {
      __pipeline_memcpy_async(static_cast<uint4*>(to) + n, vectors + n, 16);
    }
  } else {
    for (int n = thread; n < count; n += kShortThreads) {
      __pipeline_memcpy_async(static_cast<uint32_t*>(to) + n, static_cast<const uint32_t*>(from) + n, 4);
    }
  }
}

template <bool kCubic>
__global__ void __launch_bounds__(kShortThreads, kShortBlocks)
    short_kernel(const __grid_constant__ FusedOperation operation, const FusedImage* __restrict__ images) {
  extern __shared__ uint4 shared_memory[];
  auto* ring = reinterpret_cast<uint32_t*>(shared_memory);
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared_memory) + kShortRingBytes;
  const FusedImage& image = images[blockIdx.y];
  const ShortForm& form = image.short_form;
  const int tile = static_cast<int>(blockIdx.x);
  if (tile >= form.tiles) return;
  const int row_tile = tile / form.strip_count;
  const StripSpan* strips = form.strips + (tile - row_tile * form.strip_count);
  const StripSpan strip_span = *strips;
  if (form.padded) write_short_padding(operation, image);
  const int y0 = image.covered_top + row_tile * form.tile_rows;
  const int y1 = min(y0 + form.tile_rows, image.covered_bottom);

  const int group = static_cast<int>(threadIdx.x) / form.group_threads;
  const int warp = static_cast<int>(threadIdx.x) / 32 - group * (form.group_threads / 32);
  const int words = ((strip_span.end - strip_span.first) * 3 + 3) / 4 - warp * kWarpWords;
  const bool works = group * kGroupOutputs < y1 - y0 && words > 0;
  // The columns' tables arrive while rows are summed up.
  copy_words(shared + form.weights_at, form.weights + strip_span.column * form.pairs, strip_span.columns * form.pairs);
  copy_words(shared + form.offsets_at, form.offsets + strip_span.column, strip_span.columns);
  __pipeline_commit();
  if (works) {
    Strip strip;
    strip.base = image.source + strip_span.first * 3 + 4 * warp * kWarpWords;
    strip.begin = image.begin;
    strip.end = image.end;
    strip.pitch = static_cast<uint32_t>(image.pitch);
    strip.last_row = image.in_height - 1;
    strip.words = min(words, kWarpWords);
    const int outputs = y0 - image.covered_top + group * kGroupOutputs;
    const RowStep* steps = form.steps + outputs / kGroupOutputs * form.step_stride;
    uint32_t* own_ring = ring + static_cast<int>(threadIdx.x) / 32 * kShortStages * kStageWords;
    uint8_t* rows = shared + group * kGroupOutputs * form.row_bytes + warp * kWarpWords * 8;
    if (min(outputs + kGroupOutputs, y1 - image.covered_top) > form.safe_outputs) {
      sum_rows<Access::guarded, kCubic>(strip, steps, form.row_bytes, own_ring, rows);
    } else if (form.alignment == RowAlignment::sixteen) {
      sum_rows<Access::sixteen, kCubic>(strip, steps, form.row_bytes, own_ring, rows);
    } else if (form.alignment == RowAlignment::four) {
      sum_rows<Access::four, kCubic>(strip, steps, form.row_bytes, own_ring, rows);
    } else {
      sum_rows<Access::any, kCubic>(strip, steps, form.row_bytes, own_ring, rows);
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  // Read again instead of kept in registers all the while.
  const StripSpan span = *strips;
  switch (form.pairs) {
    case 2:
      return write_columns<kCubic, 2>(operation, image, span, shared, y0, y1);
    case 3:
      return write_columns<kCubic, 3>(operation, image, span, shared, y0, y1);
    case 4:
      return write_columns<kCubic, 4>(operation, image, span, shared, y0, y1);
    case 5:
      return write_columns<kCubic, 5>(operation, image, span, shared, y0, y1);
    default:
      return write_columns<kCubic, 0>(operation, image, span, shared, y0, y1);
  }
}

template <bool kCubic>
void launch(const FusedOperation& operation, const FusedImage* images, size_t image_count, int tiles,
            size_t shared_bytes, cudaStream_t stream) {
  check(cudaFuncSetAttribute(short_kernel<kCubic>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kShortRingBytes + kShortSharedBytes)),
        "shared memory of the resampling kernel");
  // A grid has 65535 rows at most.
  constexpr size_t kMostImages = 32768;
  for (size_t begin = 0; begin < image_count; begin += kMostImages) {
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(std::min(image_count - begin, kMostImages)));
    short_kernel<kCubic><<<grid, kShortThreads, kShortRingBytes + shared_bytes, stream>>>(operation, images + begin);
    check(cudaGetLastError(), "launch of the resampling kernel");
  }
}

}  // namespace

void launch_short(const FusedOperation& operation, const FusedImage* images, size_t image_count, int tiles,
                  size_t shared_bytes, cudaStream_t stream) {
  if (operation.interpolation == Interpolation::bicubic) {
    return launch<true>(operation, images, image_count, tiles, shared_bytes, stream);
  }
  launch<false>(operation, images, image_count, tiles, shared_bytes, stream);
}

}  // namespace tritonstack::image
