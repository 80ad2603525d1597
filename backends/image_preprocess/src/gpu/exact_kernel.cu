// Pillow's 8-bit resampling, bit for bit: horizontal pass first, 22-bit fixed point, rounded to 8 bits between the passes.
//
// The weights come from core/filter.h through memory, so host and device cannot differ in them; all arithmetic here is in
// integers, and values become elements through a table of the host. A block owns 8 output rows and up to 64 columns. It
// walks the source rows under them in chunks: the horizontal pass writes a chunk of narrow rows to shared memory, the
// vertical pass adds it to sums in registers, so windows of any height work.

#include "gpu/cuda_handles.h"
#include "gpu/kernels.h"
#include "gpu/sample_writer.cuh"

namespace tritonstack::image {

namespace {

constexpr int kFixedPoint = 22;
constexpr int kChunkRows = 48;
constexpr int kNarrowBytes = kExactColumns * 3;
constexpr int kPixelsPerThread = kExactRows * kExactColumns / kThreads;

__device__ __forceinline__ int to_pixel(int sum) { return min(max(sum >> kFixedPoint, 0), 255); }

__device__ void write_bits(const FusedOperation& operation, const FusedImage& image, int y, int x,
                           const int (&pixel)[3]) {
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    const int value = operation.bgr ? pixel[2 - c] : pixel[c];
    store_bits(image.output, element_offset(image, operation.nhwc, y, x, c), operation.element,
               __ldg(operation.table + c * 256 + value));
  }
}

__global__ void __launch_bounds__(kThreads)
    exact_kernel(const __grid_constant__ FusedOperation operation, const FusedImage* __restrict__ images,
                 const Tile* __restrict__ tiles) {
  __shared__ uint8_t narrow[kChunkRows * kNarrowBytes];
  const Tile tile = tiles[blockIdx.x];
  const FusedImage& image = images[tile.image];
  const int y0 = max(tile.row, image.covered_top);
  const int y1 = min(tile.row + kExactRows, image.covered_bottom);
  const int x0 = max(tile.column, image.covered_left);
  const int x1 = min(tile.column + image.tile_columns, image.covered_right);
  const bool covered = y0 < y1 && x0 < x1;

  int sums[kPixelsPerThread][3];
#pragma unroll
  for (int p = 0; p < kPixelsPerThread; ++p) {
#pragma unroll
    for (int c = 0; c < 3; ++c) sums[p][c] = 1 << (kFixedPoint - 1);
  }
  if (covered) {
    const DeviceTaps rows = image.rows;
    const DeviceTaps columns = image.columns;
    const int row_index = y0 - image.covered_top;
    const int column_index = x0 - image.covered_left;
    const int width = x1 - x0;
    const int begin = rows.first[row_index];
    const int last_row = y1 - 1 - image.covered_top;
    const int end = rows.first[last_row] + rows.taps[last_row];
    for (int chunk = begin; chunk < end; chunk += kChunkRows) {
      const int count = min(kChunkRows, end - chunk);
      for (int item = static_cast<int>(threadIdx.x); item < count * width; item += kThreads) {
        const int row = item / width;
        const int column = item - row * width;
        const int i = column_index + column;
        const int taps = columns.taps[i];
        const int* weights = columns.weights + static_cast<int64_t>(i) * columns.stride;
        const uint8_t* at = image.source + (chunk + row) * image.pitch + int64_t{columns.first[i]} * 3;
        int r = 1 << (kFixedPoint - 1);
        int g = r;
        int b = r;
        for (int n = 0; n < taps; ++n) {
          const int weight = __ldg(weights + n);
          r += weight * __ldg(at + 3 * n);
          g += weight * __ldg(at + 3 * n + 1);
          b += weight * __ldg(at + 3 * n + 2);
        }
        uint8_t* to = narrow + row * kNarrowBytes + column * 3;
        to[0] = static_cast<uint8_t>(to_pixel(r));
        to[1] = static_cast<uint8_t>(to_pixel(g));
        to[2] = static_cast<uint8_t>(to_pixel(b));
      }
      __syncthreads();
#pragma unroll
      for (int p = 0; p < kPixelsPerThread; ++p) {
        const int index = p * kThreads + static_cast<int>(threadIdx.x);
        const int y = index / kExactColumns;
        const int x = index % kExactColumns;
        if (y >= y1 - y0 || x >= width) continue;
        const int i = row_index + y;
        const int first = rows.first[i];
        const int* weights = rows.weights + static_cast<int64_t>(i) * rows.stride;
        const int from = max(first, chunk);
        const int to = min(first + rows.taps[i], chunk + count);
        for (int k = from; k < to; ++k) {
          const int weight = __ldg(weights + (k - first));
          const uint8_t* at = narrow + (k - chunk) * kNarrowBytes + x * 3;
#pragma unroll
          for (int c = 0; c < 3; ++c) sums[p][c] += weight * at[c];
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < kPixelsPerThread; ++p) {
      const int index = p * kThreads + static_cast<int>(threadIdx.x);
      const int y = index / kExactColumns;
      const int x = index % kExactColumns;
      if (y >= y1 - y0 || x >= width) continue;
      const int pixel[3] = {to_pixel(sums[p][0]), to_pixel(sums[p][1]), to_pixel(sums[p][2])};
      write_bits(operation, image, y0 + y, x0 + x, pixel);
    }
  }

  const int pad[3] = {operation.pad_value, operation.pad_value, operation.pad_value};
  const int bottom = min(tile.row + kExactRows, image.out_height);
  const int right = min(tile.column + image.tile_columns, image.out_width);
  if (covered && y0 == tile.row && y1 == bottom && x0 == tile.column && x1 == right) return;
  for (int y = tile.row; y < bottom; ++y) {
    for (int x = tile.column + static_cast<int>(threadIdx.x); x < right; x += kThreads) {
      if (!covered || y < y0 || y >= y1 || x < x0 || x >= x1) write_bits(operation, image, y, x, pad);
    }
  }
}

}  // namespace

void launch_exact(const FusedOperation& operation, const FusedImage* images, const Tile* tiles, size_t tile_count,
                  cudaStream_t stream) {
  if (tile_count == 0) return;
  exact_kernel<<<static_cast<unsigned>(tile_count), kThreads, 0, stream>>>(operation, images, tiles);
  check(cudaGetLastError(), "launch of the exact resampling kernel");
}

}  // namespace tritonstack::image
