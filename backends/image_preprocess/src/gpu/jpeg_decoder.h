// JPEG to 8-bit RGB in device memory: the hardware engine for what it takes, CPU Huffman plus GPU for the rest, both at
// the same time.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "core/executor.h"
#include "core/image.h"
#include "core/thread_pool.h"
#include "gpu/cuda_handles.h"
#include "gpu/nvjpeg_library.h"

namespace tritonstack::image {

// Who can decode a JPEG as libjpeg would.
enum class JpegKind {
  hardware,  // baseline in one scan, of a sampling that the engine knows
  hybrid,    // other baseline, extended and progressive ones
  libjpeg,   // everything doubtful
};

// From the markers alone; without an end marker the stream is cut off, which nvJPEG does not report and libjpeg does.
JpegKind kind_of_jpeg(Bytes encoded, const ImageHeader& header);

// One picture to decode. `pixels` takes size.height rows of size.width · 3 bytes, `pitch` bytes apart.
struct JpegTask {
  Bytes encoded;
  JpegKind kind = JpegKind::hybrid;
  Size size;  // as stored
  uint8_t* pixels = nullptr;
  size_t pitch = 0;
  DecodePath path = DecodePath::none;  // none: nvJPEG could not, and the caller has to
};

// How the work is shared out; the defaults are measured (docs/design/2026-11-30-image-preprocess.md).
struct DecodePolicy {
  bool hardware = true;
  int feeders = 1;                         // threads that feed the engine, each with a part of the batch
  int least_fed = 4;                       // pictures in such a part at least
  double thread_share = 0;                 // part of the engine's pictures that other threads take from it
  int64_t gpu_huffman_pixels = 1'000'000;  // from this size on threads leave the Huffman decoding to the GPU; 0: never
  int lanes = 4;                           // pictures that a thread has on the GPU at a time
};

class JpegDecoder {
 public:
  // `threads` workers at most. Raises std::runtime_error where nvJPEG does not work on the current device.
  JpegDecoder(std::shared_ptr<const nvjpeg::Library> library, const DecodePolicy& policy, int threads);
  ~JpegDecoder();

  // Fills `pixels` and `path` of every task, using one thread of the pool per worker. Blocks until the pixels are there.
  void decode(std::vector<JpegTask>& tasks, ThreadPool& pool, int device);

  // Engines times cores of each; 0 without a hardware decoder.
  int hardware_cores() const { return hardware_cores_; }

 private:
  class Feeder;
  class Worker;

  std::shared_ptr<const nvjpeg::Library> library_;
  DecodePolicy policy_;
  int hardware_cores_ = 0;
  std::vector<std::unique_ptr<Feeder>> feeders_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace tritonstack::image
