// What runs a batch: on the CPU in this folder, on a GPU in src/gpu.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "core/decode.h"
#include "core/error.h"
#include "core/geometry.h"
#include "core/image.h"
#include "core/operation.h"

namespace tritonstack::image {

// How the pixels of one picture were obtained: the label of the decode metric.
enum class DecodePath { none, raw, cpu_jpeg, cpu_png, cpu_webp, gpu_hardware, gpu_hybrid };

const char* name_of(DecodePath path);

struct Failure {
  FailureKind kind = FailureKind::internal;
  std::string reason;
};

// One picture of a batch: what comes in, where it goes, what came of it.
//
// Encoded: `encoded` and `header` are set; encoded bytes are always in CPU or pinned memory. Raw: `encoded.data` is
// null and `raw` views pixels in `raw_place`, which may be a GPU. `output` takes sample_bytes(operation,
// geometry.output) bytes in `output_place`; it may be aligned to nothing, as clients choose offsets in shared memory.
struct ImageJob {
  Bytes encoded;
  ImageHeader header;
  PixelView raw;
  MemoryPlace raw_place;
  Geometry geometry;

  void* output = nullptr;
  MemoryPlace output_place;

  std::optional<Failure> failure;
  DecodePath path = DecodePath::none;
};

// One per model instance; `run` is never called twice at the same time.
class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  // Where raw frames and outputs are best. A hint to Triton; jobs may come with any place.
  virtual MemoryPlace preferred_place() const = 0;

  // What a log should tell beside the place, such as the decoder in use; empty where there is nothing.
  virtual std::string description() const { return {}; }

  // Processes every job without `failure`. What is wrong with one picture goes into its `failure`; only what breaks the
  // whole batch is thrown. On return nothing reads inputs or writes outputs any more, on any stream.
  virtual void run(ImageJob* jobs, size_t count) = 0;
};

std::unique_ptr<Executor> make_cpu_executor(const Operation& operation);

}  // namespace tritonstack::image
