// Pillow's 8-bit resampling, bit for bit: 22-bit fixed point, rounded to 8 bits between the passes, in Pillow's order.
//
// The weights come from core/filter.h through memory, so host and device cannot differ in them; all arithmetic here is in
// integers, and values become elements through a table of the host. A block owns 8 output rows and up to 64 columns. It
// walks the source under them in chunks of rows (columns when the vertical pass comes first): the first pass writes a
// chunk to shared memory, the second adds it to sums in registers, so windows of any size work.

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

// The outputs of a tile that the picture covers, counted from the first one it covers at all.
struct Cover {
  int row;
  int column;
  int height;
  int width;
};

constexpr int kHalf = 1 << (kFixedPoint - 1);
constexpr int kPassBytes = kChunkRows * kNarrowBytes;
using Sums = int[kPixelsPerThread][3];

// Calls body(pixel of the thread, row, column) for the covered pixels that this thread owns.
template <typename Body>
__device__ __forceinline__ void for_own_pixels(const Cover& cover, Body body) {
#pragma unroll
  for (int p = 0; p < kPixelsPerThread; ++p) {
    const int index = p * kThreads + static_cast<int>(threadIdx.x);
    const int y = index / kExactColumns;
    const int x = index % kExactColumns;
    if (y < cover.height && x < cover.width) body(p, y, x);
  }
}

__device__ void horizontal_first(const FusedImage& image, const Cover& cover, uint8_t* narrow, Sums& sums) {
  const DeviceTaps rows = image.rows;
  const DeviceTaps columns = image.columns;
  const int last = cover.row + cover.height - 1;
  const int begin = rows.first[cover.row];
  const int end = rows.first[last] + rows.taps[last];
  for (int chunk = begin; chunk < end; chunk += kChunkRows) {
    const int count = min(kChunkRows, end - chunk);
    for (int item = static_cast<int>(threadIdx.x); item < count * kExactColumns; item += kThreads) {
      const int row = item / kExactColumns;
      const int column = item % kExactColumns;
      if (column >= cover.width) continue;
      const int i = cover.column + column;
      const int taps = columns.taps[i];
      const int* weights = columns.weights + static_cast<int64_t>(i) * columns.stride;
      const uint8_t* at = image.source + (chunk + row) * image.pitch + int64_t{columns.first[i]} * 3;
      int r = kHalf;
      int g = kHalf;
      int b = kHalf;
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
    for_own_pixels(cover, [&](int p, int y, int x) {
      const int i = cover.row + y;
      const int first = rows.first[i];
      const int* weights = rows.weights + static_cast<int64_t>(i) * rows.stride;
      const int to = min(first + rows.taps[i], chunk + count);
      for (int k = max(first, chunk); k < to; ++k) {
        const int weight = __ldg(weights + (k - first));
        const uint8_t* at = narrow + (k - chunk) * kNarrowBytes + x * 3;
#pragma unroll
        for (int c = 0; c < 3; ++c) sums[p][c] += weight * at[c];
      }
    });
    __syncthreads();
  }
}

__device__ void vertical_first(const FusedImage& image, const Cover& cover, uint8_t* low, Sums& sums) {
  constexpr int kRowBytes = kPassBytes / kExactRows;
  constexpr int kChunkColumns = kRowBytes / 3;
  const DeviceTaps rows = image.rows;
  const DeviceTaps columns = image.columns;
  const int last = cover.column + cover.width - 1;
  const int begin = columns.first[cover.column];
  const int end = columns.first[last] + columns.taps[last];
  for (int chunk = begin; chunk < end; chunk += kChunkColumns) {
    const int count = min(kChunkColumns, end - chunk);
    for (int row = 0; row < cover.height; ++row) {
      const int i = cover.row + row;
      const int taps = rows.taps[i];
      const int* weights = rows.weights + static_cast<int64_t>(i) * rows.stride;
      const uint8_t* from = image.source + rows.first[i] * image.pitch + int64_t{chunk} * 3;
      for (int byte = static_cast<int>(threadIdx.x); byte < count * 3; byte += kThreads) {
        int sum = kHalf;
        const uint8_t* at = from + byte;
#pragma unroll 4
        for (int n = 0; n < taps; ++n, at += image.pitch) sum += __ldg(weights + n) * __ldg(at);
        low[row * kRowBytes + byte] = static_cast<uint8_t>(to_pixel(sum));
      }
    }
    __syncthreads();
    for_own_pixels(cover, [&](int p, int y, int x) {
      const int i = cover.column + x;
      const int first = columns.first[i];
      const int* weights = columns.weights + static_cast<int64_t>(i) * columns.stride;
      const int to = min(first + columns.taps[i], chunk + count);
      for (int k = max(first, chunk); k < to; ++k) {
        const int weight = __ldg(weights + (k - first));
        const uint8_t* at = low + y * kRowBytes + (k - chunk) * 3;
#pragma unroll
        for (int c = 0; c < 3; ++c) sums[p][c] += weight * at[c];
      }
    });
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    exact_kernel(const __grid_constant__ FusedOperation operation, const FusedImage* __restrict__ images,
                 const Tile* __restrict__ tiles) {
  __shared__ uint8_t pass[kPassBytes];
  const Tile tile = tiles[blockIdx.x];
  const FusedImage& image = images[tile.image];
  const int y0 = max(tile.row, image.covered_top);
  const int y1 = min(tile.row + kExactRows, image.covered_bottom);
  const int x0 = max(tile.column, image.covered_left);
  const int x1 = min(tile.column + image.tile_columns, image.covered_right);
  const bool covered = y0 < y1 && x0 < x1;
  if (covered) {
    const Cover cover{y0 - image.covered_top, x0 - image.covered_left, y1 - y0, x1 - x0};
    Sums sums;
#pragma unroll
    for (int p = 0; p < kPixelsPerThread; ++p) {
#pragma unroll
      for (int c = 0; c < 3; ++c) sums[p][c] = kHalf;
    }
    if (image.vertical_first) {
      vertical_first(image, cover, pass, sums);
    } else {
      horizontal_first(image, cover, pass, sums);
    }
    for_own_pixels(cover, [&](int p, int y, int x) {
      const int pixel[3] = {to_pixel(sums[p][0]), to_pixel(sums[p][1]), to_pixel(sums[p][2])};
      write_bits(operation, image, y0 + y, x0 + x, pixel);
    });
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
