#include "triton/instance.h"

#include <chrono>

#include "core/gpu.h"
#include "triton/owners.h"
#include "triton/request.h"

namespace tritonstack::image {
namespace {

uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::string name_of(TRITONBACKEND_ModelInstance* handle) {
  const char* name = nullptr;
  check(TRITONBACKEND_ModelInstanceName(handle, &name));
  return name;
}

// The jobs of all requests that are not refused, in a row, with the way back.
struct Batch {
  std::vector<ImageJob> jobs;
  std::vector<ImageJob*> origins;

  explicit Batch(std::vector<RequestTask>& tasks) {
    for (RequestTask& task : tasks) {
      if (task.refused() || !task.wants_pixels()) continue;
      for (ImageJob& job : task.jobs()) {
        jobs.push_back(job);
        origins.push_back(&job);
      }
    }
  }

  void give_back() {
    for (size_t i = 0; i < jobs.size(); ++i) *origins[i] = std::move(jobs[i]);
  }
};

// What breaks a whole batch is told to each of its requests.
void run_batch(Executor& executor, std::vector<RequestTask>& tasks) {
  const auto refuse_all = [&](int code, const std::string& reason) {
    for (RequestTask& task : tasks) {
      if (task.wants_pixels()) task.refuse(code, "image_preprocess: " + reason);
    }
  };
  try {
    Batch batch(tasks);
    if (!batch.jobs.empty()) executor.run(batch.jobs.data(), batch.jobs.size());
    batch.give_back();
  } catch (const std::bad_alloc&) {
    refuse_all(kTritonUnavailable, "out of memory");
  } catch (const std::exception& error) {
    refuse_all(kTritonInternal, error.what());
  } catch (...) {
    refuse_all(kTritonInternal, "an exception of unknown type");
  }
}

}  // namespace

Instance::Instance(TRITONBACKEND_ModelInstance* handle, const Model& model)
    : handle_(handle), model_(model), executor_(make_executor(handle, model)) {}

std::unique_ptr<Executor> Instance::make_executor(TRITONBACKEND_ModelInstance* handle, const Model& model) {
  int kind = kTritonKindCpu;
  int32_t device = 0;
  check(TRITONBACKEND_ModelInstanceKind(handle, &kind));
  check(TRITONBACKEND_ModelInstanceDeviceId(handle, &device));
  const Operation& operation = model.config().operation;
  const std::string name = name_of(handle);
  if (kind == kTritonKindCpu) {
    log(kTritonInfo, "image_preprocess: " + name + " runs on the CPU, threads " + std::to_string(operation.threads));
    return make_cpu_executor(operation);
  }
  if (kind != kTritonKindGpu) {
    throw TritonError(kTritonInvalidArg, "image_preprocess: bad instance_group kind of " + name +
                                             "; expected KIND_CPU, KIND_GPU or KIND_AUTO");
  }
  if (!has_gpu()) {
    throw TritonError(kTritonUnsupported, "image_preprocess: " + name +
                                              " is to run on a GPU, and this backend was built without CUDA; next: "
                                              "build it with CUDA=ON, or use KIND_CPU");
  }
  GpuOptions options;
  options.device = device;
  options.nvjpeg_path = model.backend().nvjpeg_path();
  options.decode_threads = model.config().decode_threads();
  log(kTritonInfo, "image_preprocess: " + name + " runs on GPU " + std::to_string(device) + ", decode_threads " +
                       std::to_string(options.decode_threads));
  auto executor = make_gpu_executor(operation, options);
  if (const std::string decoder = executor->description(); !decoder.empty()) {
    log(kTritonInfo, "image_preprocess: " + name + " decodes JPEGs by " + decoder);
  }
  return executor;
}

void Instance::execute(TRITONBACKEND_Request** requests, uint32_t count) {
  const uint64_t exec_start = now_ns();
  const MemoryPlace preferred = executor_->preferred_place();
  std::vector<RequestTask> tasks;
  tasks.reserve(count);
  for (uint32_t i = 0; i < count; ++i) tasks.emplace_back(requests[i], model_);

  // From here on every request is answered, so nothing may be thrown.
  for (RequestTask& task : tasks) task.gather(preferred);
  for (RequestTask& task : tasks) task.allocate(preferred);
  const uint64_t compute_start = now_ns();
  run_batch(*executor_, tasks);
  const uint64_t compute_end = now_ns();

  uint64_t pictures = 0;
  for (RequestTask& task : tasks) {
    task.respond();
    const uint64_t exec_end = now_ns();
    if (!task.refused()) pictures += task.jobs().size();
    ignore(TRITONBACKEND_ModelInstanceReportStatistics(handle_, task.handle(), !task.refused(), exec_start,
                                                       compute_start, compute_end, exec_end));
    ignore(TRITONBACKEND_RequestRelease(task.handle(), kTritonReleaseAll));
  }
  if (pictures > 0) {
    ignore(TRITONBACKEND_ModelInstanceReportBatchStatistics(handle_, pictures, exec_start, compute_start, compute_end,
                                                            now_ns()));
  }
}

}  // namespace tritonstack::image
