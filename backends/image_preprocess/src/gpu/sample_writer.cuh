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

}  // namespace tritonstack::image
