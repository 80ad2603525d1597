// What the kernels are told. One launch serves a batch of any mix of sizes: blocks find their work in a list of tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/geometry.h"
#include "core/operation.h"
#include "core/short_tables.h"

namespace tritonstack::image {

// One axis of a resampling with weights in memory, for the exact kernel: output i of `count` takes source pixels
// first[i] … first[i] + taps[i] - 1 with weights[i * stride + k], 22-bit fixed point.
struct DeviceTaps {
  const int* first;
  const int* taps;
  const int* weights;
  int stride;
};

// How a picture's rows lie in memory: each aligned to 16 bytes, to 4, or to none.
enum class RowAlignment : int32_t { sixteen, four, any };

// Output columns of a strip (counted from the first one that the picture covers) and the source pixels under them.
struct StripSpan {
  int32_t column;
  int32_t columns;
  int32_t first;
  int32_t end;
};

// What the short kernel needs to know of a picture beyond its FusedImage; the tables are those of core/short_tables.h.
struct ShortForm {
  const RowStep* steps;
  const StripSpan* strips;
  const uint32_t* weights;  // [output column][pair]
  const int32_t* offsets;   // [output column]: the first word of its pairs in a row of sums, counted from pixel 0
  int step_stride;
  int pairs;
  int strip_count;
  int group_threads;  // threads that share a source row; a multiple of 32
  int tile_rows;
  int tiles;
  int row_bytes;               // between rows of sums in shared memory
  int weights_at, offsets_at;  // where the tables' copies begin in shared memory
  int safe_outputs;            // how many outputs from the first on may be read without looking at every byte
  RowAlignment alignment;
  bool padded;  // there is output that the picture does not cover
};

// One picture of a batch. Pixels are 8-bit RGB, interleaved.
struct FusedImage {
  const uint8_t* source;  // pixel (0, 0) of the part that is resampled (geometry.source_crop)
  const uint8_t* begin;   // the readable bytes around it: begin ≤ … < end
  const uint8_t* end;
  int64_t pitch;  // bytes between rows
  void* output;   // aligned to one element
  int in_height, in_width;            // of the part that is resampled
  int resized_height, resized_width;  // what it is resampled to
  int top, left;                      // of the resampled picture in the output; negative where the crop cuts it off
  int out_height, out_width;
  int covered_top, covered_left, covered_bottom, covered_right;  // output pixels it covers; the rest is padding
  int tile_columns;                                              // output columns of a tile
  double row_scale, column_scale;  // in / resized
  bool vertical_first;       // exact kernel only
  DeviceTaps rows, columns;  // exact kernel only; output i is covered_top + i or covered_left + i
  ShortForm short_form;      // short kernel only
};

// The work of one block: output rows and columns from the given ones on.
struct Tile {
  int image;
  int row;
  int column;
};

// What all pictures of a model share.
struct FusedOperation {
  Interpolation interpolation;
  bool antialias;
  bool round_u8;
  bool bgr;
  bool nhwc;
  ElementType element;
  int pad_value;
  float scale[3];  // value = pixel · scale + shift, per channel of the output
  float shift[3];
  const uint32_t* table;  // exact kernel: [channel of the output][pixel] as bits of the element
};

FusedOperation fused_operation(const Operation& operation);

// True where pixels must come out as Pillow's: then the exact kernel runs, else the one in float.
bool is_exact(const Operation& operation);

// Tiles of the float and the exact kernel. Pictures are filled by the caller except for tile_columns.
class TilePlan {
 public:
  TilePlan(const FusedOperation& operation, bool exact) : operation_(operation), exact_(exact) {}

  void clear();
  // `number` is the picture's place in the array given to the launch.
  void add(FusedImage& image, int number);

  const std::vector<Tile>& tiles() const { return tiles_; }
  // Words of four bytes of a source row that each thread of the float kernel owns.
  int words_per_thread() const { return words_per_thread_; }
  // Chooses words_per_thread for the pictures to come, which are those from `first` on.
  void prepare(const std::vector<FusedImage>& images, size_t first);

 private:
  FusedOperation operation_;
  bool exact_;
  int words_per_thread_ = 1;
  std::vector<Tile> tiles_;
};

// Both arrays lie in device memory. Raises CudaError where the launch fails.
void launch_fused(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
                  int words_per_thread, cudaStream_t stream);
// Pictures that ShortPlan laid out; none has more than `tiles` tiles.
void launch_short(const FusedOperation& operation, const FusedImage* images, size_t image_count, int tiles,
                  size_t shared_bytes, cudaStream_t stream);
void launch_exact(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
                  cudaStream_t stream);

// Turns a stored picture upright: EXIF orientation 2 … 8. `size` is that of the source.
void launch_orient(int orientation, const uint8_t* source, Size size, size_t pitch, uint8_t* destination,
                   size_t destination_pitch, cudaStream_t stream);

// Output rows of a tile: as many as its rows leave room for in shared memory.
template <int kWordsPerThread>
constexpr int kFusedRows = kWordsPerThread == 1 ? 8 : 4;
constexpr int kExactRows = 8;
constexpr int kExactColumns = 64;
constexpr int kThreads = 256;
constexpr int kMaxWordsPerThread = 3;
// The short kernel: threads of a block, blocks of a multiprocessor, words of a source row that each thread owns, stages of
// the ring of rows asked for, columns of a strip at most, and shared memory at most, beside the ring. Three blocks with
// fewer stages were as fast; two leave each thread the registers that it wants.
constexpr int kShortThreads = 256;
constexpr int kShortBlocks = 2;
constexpr int kShortWords = 3;
constexpr int kShortStages = 5;
constexpr int kShortColumns = 256;
constexpr size_t kShortRingBytes = size_t{kShortStages} * 2 * (32 * kShortWords + 4) * 4 * (kShortThreads / 32);
constexpr size_t kShortSharedBytes = 64 * 1024;

}  // namespace tritonstack::image
