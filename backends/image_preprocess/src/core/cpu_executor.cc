// A batch on the CPU: each picture is decoded and resampled by one thread of the pool.
#include <cstring>
#include <stdexcept>
#include <vector>

#include "core/executor.h"
#include "core/gpu.h"
#include "core/resample_cpu.h"
#include "core/thread_pool.h"

namespace tritonstack::image {
namespace {

constexpr size_t kKeptBytes = size_t{32} << 20;

// What one thread needs for one picture after the other.
struct Bench {
  explicit Bench(const Operation& operation) : resampler(operation) {}

  Resampler resampler;
  DecodedImage picture;
  std::vector<uint8_t> turned;
  std::vector<uint8_t> fetched;
  std::vector<uint8_t> sample;

  // One huge picture must not hold its memory for good.
  void trim() {
    for (std::vector<uint8_t>* buffer : {&picture.storage, &turned, &fetched, &sample}) {
      if (buffer->capacity() > kKeptBytes) std::vector<uint8_t>().swap(*buffer);
    }
    resampler.trim();
  }
};

DecodePath path_of(Format format) {
  switch (format) {
    case Format::jpeg:
      return DecodePath::cpu_jpeg;
    case Format::png:
      return DecodePath::cpu_png;
    case Format::webp:
      break;
  }
  return DecodePath::cpu_webp;
}

class CpuExecutor : public Executor {
 public:
  explicit CpuExecutor(const Operation& operation) : operation_(operation), pool_(operation.threads) {
    benches_.reserve(static_cast<size_t>(pool_.size()));
    for (int i = 0; i < pool_.size(); ++i) benches_.emplace_back(operation);
  }

  MemoryPlace preferred_place() const override { return {Memory::cpu, 0}; }

  void run(ImageJob* jobs, size_t count) override {
    pool_.for_each(count, [&](size_t index, size_t worker) { process(jobs[index], benches_[worker]); });
  }

 private:
  void process(ImageJob& job, Bench& bench) const noexcept {
    if (job.failure) return;
    try {
      const Rect region = needed_source(operation_, job.geometry);
      const PixelView source = fetch(job, region, bench);
      write(job, source, region, bench);
      bench.trim();
    } catch (const ImageError& error) {
      job.failure = Failure{error.kind(), error.what()};
    } catch (const std::bad_alloc&) {
      job.failure = Failure{FailureKind::internal, "out of memory"};
    } catch (const std::exception& error) {
      job.failure = Failure{FailureKind::internal, error.what()};
    }
  }

  void write(const ImageJob& job, PixelView source, Rect region, Bench& bench) const {
    const bool on_gpu = job.output_place.memory == Memory::gpu;
    const bool aligned = reinterpret_cast<uintptr_t>(job.output) % byte_size(operation_.element) == 0;
    if (!on_gpu && aligned) {
      bench.resampler.run(job.geometry, source, region, job.output);
      return;
    }
    const size_t bytes = sample_bytes(operation_, job.geometry.output);
    if (bench.sample.size() < bytes) bench.sample.resize(bytes);
    bench.resampler.run(job.geometry, source, region, bench.sample.data());
    if (on_gpu) {
      require_gpu();
      copy_from_host(job.output, bench.sample.data(), bytes, job.output_place.device);
    } else {
      std::memcpy(job.output, bench.sample.data(), bytes);
    }
  }

  // The pixels of `region`; valid until the bench's next picture.
  static PixelView fetch(ImageJob& job, Rect region, Bench& bench) {
    if (job.encoded.data != nullptr) {
      job.path = path_of(job.header.format);
      decode(job.encoded, job.header, region, bench.picture, bench.turned);
      return bench.picture.view();
    }
    job.path = DecodePath::raw;
    PixelView frame = job.raw;
    if (job.raw_place.memory == Memory::gpu) {
      require_gpu();
      const size_t bytes = static_cast<size_t>(frame.size.height) * frame.row_bytes;
      if (bench.fetched.size() < bytes) bench.fetched.resize(bytes);
      copy_to_host(bench.fetched.data(), frame.data, bytes, job.raw_place.device);
      frame.data = bench.fetched.data();
    }
    return {frame.at(region.top, region.left), {region.height, region.width}, frame.row_bytes};
  }

  static void require_gpu() {
    if (!has_gpu()) {
      throw std::runtime_error("a tensor lies in GPU memory, and this backend was built without CUDA");
    }
  }

  Operation operation_;
  ThreadPool pool_;
  std::vector<Bench> benches_;
};

}  // namespace

const char* name_of(DecodePath path) {
  switch (path) {
    case DecodePath::none:
      return "none";
    case DecodePath::raw:
      return "raw";
    case DecodePath::cpu_jpeg:
      return "cpu_jpeg";
    case DecodePath::cpu_png:
      return "cpu_png";
    case DecodePath::cpu_webp:
      return "cpu_webp";
    case DecodePath::gpu_hardware:
      return "gpu_hardware";
    case DecodePath::gpu_hybrid:
      break;
  }
  return "gpu_hybrid";
}

std::unique_ptr<Executor> make_cpu_executor(const Operation& operation) {
  return std::make_unique<CpuExecutor>(operation);
}

}  // namespace tritonstack::image
