// Turns a stored picture upright as its EXIF orientation says.

#include "gpu/cuda_handles.h"
#include "gpu/kernels.h"

namespace tritonstack::image {

namespace {

__global__ void orient_kernel(int orientation, const uint8_t* source, int height, int width, int64_t pitch,
                              uint8_t* destination, int64_t destination_pitch) {
  const bool swapped = orientation >= 5;
  const int upright_height = swapped ? width : height;
  const int upright_width = swapped ? height : width;
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x >= upright_width || y >= upright_height) return;
  // Where the upright pixel (y, x) is stored, by the EXIF table of row 0 and column 0.
  int from_y = swapped ? x : y;
  int from_x = swapped ? y : x;
  if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) from_x = width - 1 - from_x;
  if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) from_y = height - 1 - from_y;
  const uint8_t* from = source + from_y * pitch + int64_t{from_x} * 3;
  uint8_t* to = destination + y * destination_pitch + int64_t{x} * 3;
  for (int c = 0; c < 3; ++c) to[c] = from[c];
}

}  // namespace

void launch_orient(int orientation, const uint8_t* source, Size size, size_t pitch, uint8_t* destination,
                   size_t destination_pitch, cudaStream_t stream) {
  const bool swapped = orientation >= 5;
  const dim3 block(32, 8);
  const auto blocks = [](int pixels, unsigned edge) { return (static_cast<unsigned>(pixels) + edge - 1) / edge; };
  const dim3 grid(blocks(swapped ? size.height : size.width, block.x),
                  blocks(swapped ? size.width : size.height, block.y));
  orient_kernel<<<grid, block, 0, stream>>>(orientation, source, size.height, size.width,
                                            static_cast<int64_t>(pitch), destination,
                                            static_cast<int64_t>(destination_pitch));
  check(cudaGetLastError(), "launch of the orientation kernel");
}

}  // namespace tritonstack::image
