// A small C interface to both executors, for benchmarks and tests that load the core as a shared library.
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/decode.h"
#include "core/executor.h"
#include "core/geometry.h"
#include "core/gpu.h"
#include "gpu/cuda_handles.h"
#include "gpu/gpu_executor.h"

namespace tritonstack::image {

namespace {

struct Instance {
  Operation operation;
  std::unique_ptr<Executor> executor;
  std::vector<ImageJob> jobs;
  std::string message;
};

thread_local std::string last_error;

ElementType element_of(const std::string& name) {
  if (name == "FP32") return ElementType::f32;
  if (name == "FP16") return ElementType::f16;
  if (name == "BF16") return ElementType::bf16;
  if (name == "UINT8") return ElementType::u8;
  throw ConfigError("element type; given '" + name + "'; expected FP32, FP16, BF16 or UINT8");
}

// Lines of "name value".
Settings read_settings(const char* text) {
  Settings settings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space != std::string::npos) settings[line.substr(0, space)] = line.substr(space + 1);
  }
  return settings;
}

template <typename T>
T taken(Settings& settings, const std::string& name, T otherwise) {
  const auto found = settings.find(name);
  if (found == settings.end()) return otherwise;
  std::istringstream text(found->second);
  T value{};
  if (!(text >> value)) throw ConfigError("bad " + name + "; given '" + found->second + "'");
  settings.erase(found);
  return value;
}

}  // namespace

}  // namespace tritonstack::image

#define TRITONSTACK_EXPORT extern "C" __attribute__((visibility("default")))

using namespace tritonstack::image;

// Why the last call on this thread returned null or -1.
TRITONSTACK_EXPORT const char* tritonstack_image_error() { return last_error.c_str(); }

// `settings`: lines of "name value", the parameters of the backend, plus nvjpeg_path and, for measuring, the fields of
// DecodePolicy. `device`: a GPU, or -1 for the CPU executor. Null on failure.
TRITONSTACK_EXPORT void* tritonstack_image_create(const char* settings, const char* element, int device) {
  try {
    Settings values = read_settings(settings);
    DecodePolicy policy;
    policy.hardware = taken(values, "hardware", policy.hardware ? 1 : 0) != 0;
    policy.thread_share = taken(values, "thread_share", policy.thread_share);
    policy.feeders = taken(values, "feeders", policy.feeders);
    policy.least_fed = taken(values, "least_fed", policy.least_fed);
    policy.lanes = taken(values, "lanes", policy.lanes);
    policy.gpu_huffman_pixels = taken(values, "gpu_huffman_pixels", policy.gpu_huffman_pixels);
    GpuOptions options;
    options.device = device;
    options.nvjpeg_path = taken(values, "nvjpeg_path", std::string{});
    auto instance = std::make_unique<Instance>();
    instance->operation = parse_operation(values, element_of(element));
    options.decode_threads = instance->operation.decode_threads.value_or(instance->operation.threads);
    if (device < 0) {
      instance->executor = make_cpu_executor(instance->operation);
    } else {
      check(cudaSetDevice(device), "cudaSetDevice");
      instance->executor = std::make_unique<GpuExecutor>(instance->operation, options, policy);
    }
    return instance.release();
  } catch (const std::exception& error) {
    last_error = error.what();
    return nullptr;
  }
}

TRITONSTACK_EXPORT void tritonstack_image_destroy(void* instance) { delete static_cast<Instance*>(instance); }

// Height and width of the sample that a picture of the given size becomes. 0, or -1 on failure.
TRITONSTACK_EXPORT int tritonstack_image_output(void* handle, int height, int width, int* output) {
  try {
    const Geometry geometry = plan_geometry(static_cast<Instance*>(handle)->operation, {height, width});
    output[0] = geometry.output.height;
    output[1] = geometry.output.width;
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

// Processes `count` pictures; blocks until the outputs are written. Encoded: `sizes[i]` bytes at `data[i]` in host memory,
// `shapes` null. Raw: `shapes` holds height and width of each, and rows follow each other without a gap; `data_device` is
// where they lie, -1 for the host. Sample i goes to `outputs[i]` on `output_device`. `paths[i]` becomes the DecodePath,
// or -1 for a picture that failed; the first failure's reason is tritonstack_image_error(). Returns how many failed, or -1.
TRITONSTACK_EXPORT int tritonstack_image_run(void* handle, int count, const uint8_t* const* data, const size_t* sizes,
                                             const int* shapes, int data_device, void* const* outputs,
                                             int output_device, int* paths) {
  try {
    auto& instance = *static_cast<Instance*>(handle);
    instance.jobs.clear();
    instance.jobs.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < instance.jobs.size(); ++i) {
      ImageJob& job = instance.jobs[i];
      try {
        if (shapes == nullptr) {
          job.encoded = {data[i], sizes[i]};
          job.header = read_header(job.encoded, instance.operation);
          job.geometry = plan_geometry(instance.operation, job.header.oriented());
        } else {
          const Size size{shapes[2 * i], shapes[2 * i + 1]};
          job.raw = {data[i], size, static_cast<size_t>(size.width) * kChannels};
          job.raw_place = {data_device < 0 ? Memory::cpu : Memory::gpu, data_device};
          job.geometry = plan_geometry(instance.operation, size);
        }
        job.output = outputs[i];
        job.output_place = {output_device < 0 ? Memory::cpu : Memory::gpu, output_device};
      } catch (const ImageError& error) {
        job.failure = Failure{error.kind(), error.what()};
      }
    }
    instance.executor->run(instance.jobs.data(), instance.jobs.size());
    int failed = 0;
    for (size_t i = 0; i < instance.jobs.size(); ++i) {
      const ImageJob& job = instance.jobs[i];
      paths[i] = job.failure ? -1 : static_cast<int>(job.path);
      if (job.failure && failed++ == 0) last_error = job.failure->reason;
    }
    return failed;
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

// Milliseconds on the device for `repeats` launches over `count` raw pictures that lie there, without the host's part.
TRITONSTACK_EXPORT double tritonstack_image_time_kernel(void* handle, int count, const uint8_t* const* data,
                                                        const int* shapes, void* const* outputs, int repeats) {
  try {
    auto& instance = *static_cast<Instance*>(handle);
    std::vector<ImageJob> jobs(static_cast<size_t>(count));
    auto* executor = dynamic_cast<GpuExecutor*>(instance.executor.get());
    if (executor == nullptr) throw std::runtime_error("not an instance on a GPU");
    for (size_t i = 0; i < jobs.size(); ++i) {
      const Size size{shapes[2 * i], shapes[2 * i + 1]};
      jobs[i].raw = {data[i], size, static_cast<size_t>(size.width) * kChannels};
      jobs[i].raw_place = executor->preferred_place();
      jobs[i].geometry = plan_geometry(instance.operation, size);
      jobs[i].output = outputs[i];
      jobs[i].output_place = executor->preferred_place();
    }
    return executor->time_kernel(jobs.data(), jobs.size(), repeats);
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}
