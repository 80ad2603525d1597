// JPEG to 8-bit RGB in device memory: the hardware engine for what it takes, CPU Huffman plus GPU for the rest, both at
// the same time.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/executor.h"
#include "core/image.h"
#include "core/thread_pool.h"
#include "gpu/cuda_handles.h"
#include "gpu/nvjpeg_library.h"

namespace tritonstack::image {

// One picture to decode. `pixels` takes size.height rows of size.width · 3 bytes, `pitch` bytes apart.
struct JpegTask {
  Bytes encoded;
  Size size;  // as stored
  uint8_t* pixels = nullptr;
  size_t pitch = 0;
  DecodePath path = DecodePath::none;  // none: nvJPEG could not, and the caller has to
};

// How the work is shared out; the defaults are measured (docs/design/2026-11-30-image-preprocess.md).
struct DecodePolicy {
  bool hardware = true;
  int hardware_batch = 16;         // pictures the engine is given at a time while the threads work on others
  bool threads_help = true;        // threads decode what the engine has not begun
  int64_t gpu_huffman_pixels = 0;  // from this size on threads leave the Huffman decoding to the GPU; 0: never
};

// What nvJPEG can decode as libjpeg would: baseline or progressive, 8 bits, gray or YCbCr, with an end marker.
bool is_for_nvjpeg(Bytes encoded, const ImageHeader& header);

class JpegDecoder {
 public:
  // `threads` workers at most. Raises std::runtime_error where nvJPEG does not work on the current device.
  JpegDecoder(std::shared_ptr<const nvjpeg::Library> library, const DecodePolicy& policy, int threads);
  ~JpegDecoder();

  // Fills `pixels` and `path` of every task, using one thread of the pool per worker. Work on the GPU may still be under
  // way on return; `stream` is made to wait for it. `encoded` must stay until then.
  void decode(std::vector<JpegTask>& tasks, ThreadPool& pool, int device, const Stream& stream);

  // Engines times cores of each; 0 without a hardware decoder.
  int hardware_cores() const { return hardware_cores_; }

 private:
  class Hardware;
  class Worker;

  std::shared_ptr<const nvjpeg::Library> library_;
  DecodePolicy policy_;
  int hardware_cores_ = 0;
  std::unique_ptr<Hardware> hardware_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace tritonstack::image
