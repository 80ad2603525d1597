// From a pixel to the element of the output tensor, on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/kernels.h"

namespace tritonstack::image {

// Offset of (y, x, channel of the output) in elements.
__device__ __forceinline__ int64_t element_offset(const FusedImage& image, bool nhwc, int y, int x, int channel) {
  return nhwc ? (static_cast<int64_t>(y) * image.out_width + x) * 3 + channel
              : (static_cast<int64_t>(channel) * image.out_height + y) * image.out_width + x;
}

__device__ __forceinline__ void store(void* output, int64_t offset, ElementType element, float value) {
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

__device__ __forceinline__ void store_bits(void* output, int64_t offset, ElementType element, uint32_t bits) {
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
