#include "c_api.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/executor.h"
#include "core/geometry.h"
#include "core/gpu.h"
#include "core/operation.h"

#define TSIMAGE_EXPORT extern "C" __attribute__((visibility("default")))

using tritonstack::image::ConfigError;
using tritonstack::image::ElementType;
using tritonstack::image::Executor;
using tritonstack::image::Geometry;
using tritonstack::image::ImageJob;
using tritonstack::image::Memory;
using tritonstack::image::MemoryPlace;
using tritonstack::image::Operation;
using tritonstack::image::Size;

struct tsimage_processor {
  Operation operation;
  std::unique_ptr<Executor> executor;
};

namespace {

void write_error(const char* reason, char* error, size_t error_size) {
  if (error == nullptr || error_size == 0) return;
  const size_t length = std::min(std::strlen(reason), error_size - 1);
  std::memcpy(error, reason, length);
  error[length] = '\0';
}

// The one place where exceptions end.
template <typename Result, typename Work>
Result guarded(Result failed, char* error, size_t error_size, Work work) {
  try {
    return work();
  } catch (const std::exception& problem) {
    write_error(problem.what(), error, error_size);
  } catch (...) {
    write_error("unknown error", error, error_size);
  }
  return failed;
}

ElementType element_type(int32_t element) {
  switch (element) {
    case TSIMAGE_U8:
      return ElementType::u8;
    case TSIMAGE_F16:
      return ElementType::f16;
    case TSIMAGE_BF16:
      return ElementType::bf16;
    case TSIMAGE_F32:
      return ElementType::f32;
    default:
      throw ConfigError("unknown element type " + std::to_string(element));
  }
}

tritonstack::image::Settings read_settings(const char* const* names, const char* const* values, size_t count) {
  tritonstack::image::Settings settings;
  for (size_t i = 0; i < count; ++i) {
    if (!tritonstack::image::is_setting(names[i])) {
      throw ConfigError("unknown parameter '" + std::string(names[i]) + "'; expected one of " +
                        tritonstack::image::setting_names());
    }
    settings[names[i]] = values[i];
  }
  return settings;
}

std::unique_ptr<Executor> make_executor(const Operation& operation, int32_t device) {
  if (device < 0) return tritonstack::image::make_cpu_executor(operation);
  if (!tritonstack::image::has_gpu()) {
    throw ConfigError("this library was built without its GPU part; expected a build with nvcc");
  }
  tritonstack::image::GpuOptions options;
  options.device = device;
  return tritonstack::image::make_gpu_executor(operation, options);
}

MemoryPlace place(int32_t device) {
  if (device < 0) return {Memory::cpu, 0};
  return {Memory::gpu, device};
}

ImageJob make_job(const Operation& operation, const tsimage_picture& picture) {
  ImageJob job;
  job.geometry = tritonstack::image::plan_geometry(operation, {picture.height, picture.width});
  job.raw = {picture.pixels, {picture.height, picture.width}, picture.row_bytes};
  job.raw_place = place(picture.pixels_device);
  job.output = picture.output;
  job.output_place = place(picture.output_device);
  return job;
}

}  // namespace

TSIMAGE_EXPORT int32_t tsimage_version(void) { return TSIMAGE_VERSION; }

TSIMAGE_EXPORT int32_t tsimage_has_gpu(void) { return tritonstack::image::has_gpu() ? 1 : 0; }

TSIMAGE_EXPORT tsimage_processor* tsimage_new(const char* const* names, const char* const* values, size_t count,
                                              int32_t element, int32_t device, char* error, size_t error_size) {
  return guarded<tsimage_processor*>(nullptr, error, error_size, [&] {
    auto processor = std::make_unique<tsimage_processor>();
    processor->operation =
        tritonstack::image::parse_operation(read_settings(names, values, count), element_type(element));
    processor->executor = make_executor(processor->operation, device);
    return processor.release();
  });
}

TSIMAGE_EXPORT void tsimage_delete(tsimage_processor* processor) { delete processor; }

TSIMAGE_EXPORT int32_t tsimage_output_size(const tsimage_processor* processor, int32_t height, int32_t width,
                                           int32_t* output_height, int32_t* output_width, char* error,
                                           size_t error_size) {
  return guarded<int32_t>(-1, error, error_size, [&] {
    const Geometry geometry = tritonstack::image::plan_geometry(processor->operation, {height, width});
    *output_height = geometry.output.height;
    *output_width = geometry.output.width;
    return 0;
  });
}

TSIMAGE_EXPORT int32_t tsimage_run(tsimage_processor* processor, const tsimage_picture* pictures, size_t count,
                                   char* error, size_t error_size) {
  return guarded<int32_t>(-1, error, error_size, [&] {
    std::vector<ImageJob> jobs;
    jobs.reserve(count);
    for (size_t i = 0; i < count; ++i) jobs.push_back(make_job(processor->operation, pictures[i]));
    processor->executor->run(jobs.data(), jobs.size());
    for (size_t i = 0; i < count; ++i) {
      if (!jobs[i].failure) continue;
      write_error(("picture " + std::to_string(i) + ": " + jobs[i].failure->reason).c_str(), error, error_size);
      return -1;
    }
    return 0;
  });
}
