// From a pixel to the element of the output tensor, on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/kernels.h"

namespace tritonstack::image {

// Offset of (y, x, channel of the output) in elements, which are fewer than 2^31: sides are at most 16384.
__device__ __forceinline__ int element_offset(const FusedImage& image, bool nhwc, int y, int x, int channel) {
  const int pixel = y * image.out_width + x;
  return nhwc ? pixel * 3 + channel : channel * image.out_height * image.out_width + pixel;
}

__device__ __forceinline__ void store(void* output, int offset, ElementType element, float value) {
  switch (element) {
    case ElementType::f32:
      static_cast<float*>(output)[offset] = value;
      break;
    case ElementType::f16:
      static_cast<__half*>(output)[offset] = __float2half_rn(value);
      break;
    case ElementType::bf16:
      static_cast<__nv_bfloat16*>(output)[offset] = __float2bfloat16_rn(value);
      break;
    case ElementType::u8:
      static_cast<uint8_t*>(output)[offset] = static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(value, 0.0F), 255.0F)));
      break;
  }
}

__device__ __forceinline__ void store_bits(void* output, int offset, ElementType element, uint32_t bits) {
  switch (element) {
    case ElementType::f32:
      static_cast<uint32_t*>(output)[offset] = bits;
      break;
    case ElementType::f16:
    case ElementType::bf16:
      static_cast<uint16_t*>(output)[offset] = static_cast<uint16_t>(bits);
      break;
    case ElementType::u8:
      static_cast<uint8_t*>(output)[offset] = static_cast<uint8_t>(bits);
      break;
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

// What the resized picture does not cover.
__device__ __forceinline__ void write_padding(const FusedOperation& operation, const FusedImage& image, const Tile& tile, int rows,
                              int columns) {
  const int bottom = min(tile.row + rows, image.out_height);
  const int right = min(tile.column + columns, image.out_width);
  if (tile.row >= image.covered_top && bottom <= image.covered_bottom && tile.column >= image.covered_left &&
      right <= image.covered_right) {
    return;
  }
  const float value = static_cast<float>(operation.pad_value);
  const float pixel[3] = {value, value, value};
  for (int y = tile.row; y < bottom; ++y) {
    const bool inside = y >= image.covered_top && y < image.covered_bottom;
    for (int x = tile.column + static_cast<int>(threadIdx.x); x < right; x += static_cast<int>(blockDim.x)) {
      if (!inside || x < image.covered_left || x >= image.covered_right) write_pixel<false>(operation, image, y, x, pixel);
    }
  }
}

// Four elements at `at`, which is aligned to all four.
__device__ __forceinline__ void store_four(void* output, int offset, ElementType element, const float (&v)[4]) {
  switch (element) {
    case ElementType::f32:
      *reinterpret_cast<float4*>(static_cast<float*>(output) + offset) = make_float4(v[0], v[1], v[2], v[3]);
      break;
    case ElementType::f16: {
      const __half2 low = __floats2half2_rn(v[0], v[1]);
      const __half2 high = __floats2half2_rn(v[2], v[3]);
      *reinterpret_cast<uint2*>(static_cast<__half*>(output) + offset) =
          make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
      break;
    }
    case ElementType::bf16: {
      const __nv_bfloat162 low = __floats2bfloat162_rn(v[0], v[1]);
      const __nv_bfloat162 high = __floats2bfloat162_rn(v[2], v[3]);
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(output) + offset) =
          make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
      break;
    }
    case ElementType::u8: {
      uint32_t word = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        word |= static_cast<uint32_t>(__float2int_rn(fminf(fmaxf(v[n], 0.0F), 255.0F))) << (8 * n);
      }
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(output) + offset) = word;
      break;
    }
  }
}

__device__ __forceinline__ int element_bytes(ElementType element) {
  return element == ElementType::f32 ? 4 : element == ElementType::u8 ? 1 : 2;
}

// Four neighbouring pixels of a row, of which the first `count` are in the tile: values 0 … 255 to elements, in vectors
// where their place in the output allows it.
__device__ __forceinline__ void write_four(const FusedOperation& operation, const FusedImage& image, int y, int x,
                                           int count, const float (&pixels)[4][3]) {
  float values[3][4];
#pragma unroll
  for (int c = 0; c < 3; ++c) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[c][j] = fmaf(operation.bgr ? pixels[j][2 - c] : pixels[j][c], operation.scale[c], operation.shift[c]);
    }
  }
  const int width = element_bytes(operation.element);
  const int offset = element_offset(image, operation.nhwc, y, x, 0);
  const bool whole = count == 4 && image.out_width % 4 == 0 &&
                     (reinterpret_cast<uintptr_t>(image.output) + static_cast<uintptr_t>(offset) * width) % (4 * width) == 0;
  if (!whole) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        if (j < count) {
          store(image.output, element_offset(image, operation.nhwc, y, x + j, c), operation.element, values[c][j]);
        }
      }
    }
  } else if (operation.nhwc) {
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      const float four[4] = {values[4 * n % 3][4 * n / 3], values[(4 * n + 1) % 3][(4 * n + 1) / 3],
                             values[(4 * n + 2) % 3][(4 * n + 2) / 3], values[(4 * n + 3) % 3][(4 * n + 3) / 3]};
      store_four(image.output, offset + 4 * n, operation.element, four);
    }
  } else {
    const int plane = image.out_height * image.out_width;
#pragma unroll
    for (int c = 0; c < 3; ++c) store_four(image.output, offset + c * plane, operation.element, values[c]);
  }
}

}  // namespace tritonstack::image
