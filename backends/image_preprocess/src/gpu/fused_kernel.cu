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

#include "gpu/cuda_handles.h"
#include "gpu/kernels.h"
#include "gpu/sample_writer.cuh"
#include "gpu/vertical_pass.cuh"

namespace tritonstack::image {

namespace {

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
  write_padding(operation, image, tile, kRows, image.tile_columns);
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
