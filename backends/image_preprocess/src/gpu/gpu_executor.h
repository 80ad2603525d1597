// The executor of a GPU instance: one stream, scratch memory that grows, no allocation in the steady state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/executor.h"
#include "core/gpu.h"
#include "core/thread_pool.h"
#include "gpu/cuda_handles.h"
#include "gpu/jpeg_decoder.h"
#include "gpu/kernels.h"
#include "gpu/short_plan.h"
#include "gpu/tap_tables.h"

namespace tritonstack::image {

class GpuExecutor : public Executor {
 public:
  // The options' device must be current. Raises ConfigError where `nvjpeg_path` holds no nvJPEG; without a path a
  // missing nvJPEG means that libjpeg decodes.
  GpuExecutor(const Operation& operation, const GpuOptions& options, const DecodePolicy& policy);

  MemoryPlace preferred_place() const override { return {Memory::gpu, device_}; }
  void run(ImageJob* jobs, size_t count) override;

  // Milliseconds that `repeats` launches take over a batch that `run` would do in one group, for benchmarks.
  double time_kernel(ImageJob* jobs, size_t count, int repeats);

  std::string description() const override { return decoder_description_; }

 private:
  // Decoded pixels of one group take at most this much, unless a single picture is larger.
  static constexpr size_t kGroupBytes = size_t{1} << 30;

  enum class Place {
    borrowed,    // raw frames already on this GPU
    gpu_decode,  // JPEGs for nvJPEG
    upload,      // what the CPU decodes, and raw frames elsewhere
  };

  // Where the pixels of a job are: `view` covers `region` of the upright picture.
  struct Source {
    Place place = Place::upload;
    JpegKind kind = JpegKind::libjpeg;
    size_t offset = 0;
    size_t upright_offset = 0;
    size_t output_offset = 0;
    bool direct = false;
    PixelView view;
    Rect region;
  };

  // Nothing may read inputs or write outputs once `run` is left, also when an exception leaves it.
  class Settled {
   public:
    explicit Settled(const Stream& stream) : stream_(stream) {}
    Settled(const Settled&) = delete;
    Settled& operator=(const Settled&) = delete;
    ~Settled() { static_cast<void>(cudaStreamSynchronize(stream_.get())); }

   private:
    const Stream& stream_;
  };

  void upload_table();
  void run_group(ImageJob* jobs, size_t count);
  void lay_out_pixels(ImageJob* jobs, size_t count);
  void decode(ImageJob* jobs, size_t count);
  void upload(ImageJob* jobs, size_t count);
  FusedImage describe_image(const ImageJob& job, const Source& source) const;
  void launch(const ImageJob* jobs);
  void lay_out_tiles();
  void launch_kernels(const uint8_t* descriptions);

  Operation operation_;
  bool exact_;
  FusedOperation fused_;
  int device_;
  ThreadPool pool_;
  TilePlan plan_;
  ShortPlan short_plan_;
  TapTables taps_;
  Stream stream_;
  DeviceBuffer table_;
  DeviceBuffer pixels_;
  DeviceBuffer outputs_;
  DeviceBuffer descriptions_;
  PinnedBuffer staging_;
  std::unique_ptr<JpegDecoder> decoder_;
  std::string decoder_description_;
  std::vector<Source> sources_;
  std::vector<FusedImage> images_;
  std::vector<size_t> active_;
  size_t in_short_form_ = 0;
  std::vector<size_t> uploads_;
  std::vector<JpegTask> tasks_;
  std::vector<size_t> task_jobs_;
  std::vector<std::vector<uint8_t>> scratch_;
  std::vector<DecodedImage> decoded_;
};

}  // namespace tritonstack::image
