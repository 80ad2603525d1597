// The door to src/gpu. The symbols are weak: in a build without CUDA they are null, and `has_gpu()` says so.
#pragma once

#include <cstddef>
#include <memory>

#include "core/executor.h"

namespace tritonstack::image {

// What a GPU instance can be told beside the operation.
struct GpuOptions {
  int device = 0;
  std::string nvjpeg_path;  // folder or file of libnvjpeg; empty: the loader's path
  int decode_threads = 1;   // for the CPU parts of decoding
};

// Raises ConfigError or std::runtime_error with the CUDA error's text.
__attribute__((weak)) std::unique_ptr<Executor> make_gpu_executor(const Operation& operation,
                                                                  const GpuOptions& options);

// Copies between host and GPU memory of the device, done on return: for CPU instances that are handed GPU buffers.
// Raise std::runtime_error.
__attribute__((weak)) void copy_to_host(void* host, const void* device_memory, size_t bytes, int device);
__attribute__((weak)) void copy_from_host(void* device_memory, const void* host, size_t bytes, int device);

inline bool has_gpu() {
  return &make_gpu_executor != nullptr;
}

}  // namespace tritonstack::image
