// A Triton backend that does as little as possible, so that tests and benchmarks of clients measure clients.
//
// nullsmall: FP32 x to FP32 y = x + 1, of equal shape. nullimg: whatever comes in, y[i] = x[i * stride] + 1 for as many
// elements as the output has, so that an answer shows that its input arrived. Which of them a model is follows from the
// sizes: where input and output have as many bytes, each element counts, else one of each stride.
//
// Parameter `delay_us`: each execution takes at least so long, by sleeping.
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "triton/abi.h"

namespace {

struct Model {
  uint64_t output_elements = 0;  // of one sample; 0: as many as the input has
  uint64_t delay_us = 0;
  bool batches = false;
};

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000U + static_cast<uint64_t>(now.tv_nsec);
}

// The number behind `key` in the server's own JSON of the config, which is what this file gives to it.
uint64_t number_behind(const std::string& json, const std::string& key, uint64_t otherwise) {
  const size_t at = json.find(key);
  if (at == std::string::npos) return otherwise;
  const size_t digits = json.find_first_of("0123456789", at + key.size());
  return digits == std::string::npos ? otherwise : std::strtoull(json.c_str() + digits, nullptr, 10);
}

TRITONSERVER_Error* answer(const Model& model, TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = nullptr;
  if (auto* error = TRITONBACKEND_ResponseNew(&response, request)) return error;
  TRITONSERVER_Error* failed = nullptr;
  TRITONBACKEND_Input* input = nullptr;
  const int64_t* shape = nullptr;
  uint32_t dimensions = 0;
  uint64_t bytes = 0;
  uint32_t buffers = 0;
  failed = TRITONBACKEND_RequestInput(request, "x", &input);
  if (failed == nullptr) {
    failed = TRITONBACKEND_InputProperties(input, nullptr, nullptr, &shape, &dimensions, &bytes, &buffers);
  }
  const void* source = nullptr;
  if (failed == nullptr) {
    int memory = kTritonCpu;
    int64_t id = 0;
    uint64_t there = 0;
    failed = TRITONBACKEND_InputBuffer(input, 0, &source, &there, &memory, &id);
    if (failed == nullptr && (memory == kTritonGpu || there != bytes)) {
      failed = TRITONSERVER_ErrorNew(kTritonUnsupported, "null: the input is not in one piece of host memory");
    }
  }
  if (failed == nullptr) {
    const uint64_t elements = bytes / sizeof(float);
    const uint64_t samples = model.batches ? static_cast<uint64_t>(shape[0]) : 1;
    const uint64_t wanted = model.output_elements == 0 ? elements : model.output_elements * samples;
    int64_t output_shape[8];
    uint32_t output_dimensions = dimensions;
    std::copy(shape, shape + std::min<uint32_t>(dimensions, 8), output_shape);
    if (model.output_elements != 0) {
      output_dimensions = 0;
      if (model.batches) output_shape[output_dimensions++] = shape[0];
      output_shape[output_dimensions++] = static_cast<int64_t>(model.output_elements);
    }
    TRITONBACKEND_Output* output = nullptr;
    failed = TRITONBACKEND_ResponseOutput(response, &output, "y", kTritonFp32, output_shape, output_dimensions);
    void* target = nullptr;
    int memory = kTritonCpu;
    int64_t id = 0;
    if (failed == nullptr) failed = TRITONBACKEND_OutputBuffer(output, &target, wanted * sizeof(float), &memory, &id);
    if (failed == nullptr) {
      const auto* x = static_cast<const float*>(source);
      auto* y = static_cast<float*>(target);
      const uint64_t stride = wanted == 0 ? 1 : std::max<uint64_t>(elements / wanted, 1);
      for (uint64_t i = 0; i < wanted; ++i) y[i] = x[i * stride] + 1.0F;
    }
  }
  if (auto* error = TRITONBACKEND_ResponseSend(response, kTritonResponseFinal, failed)) TRITONSERVER_ErrorDelete(error);
  if (failed != nullptr) TRITONSERVER_ErrorDelete(failed);
  return nullptr;
}

void forget(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* config = nullptr;
  if (auto* error = TRITONBACKEND_ModelConfig(model, 1, &config)) return error;
  const char* text = nullptr;
  size_t bytes = 0;
  auto* error = TRITONSERVER_MessageSerializeToJson(config, &text, &bytes);
  if (error == nullptr) {
    const std::string json(text, bytes);
    auto* state = new Model;
    state->batches = number_behind(json, "\"max_batch_size\"", 0) > 0;
    const size_t delay = json.find("\"delay_us\"");
    if (delay != std::string::npos) state->delay_us = number_behind(json.substr(delay + 10), "", 0);
    const size_t elements = json.find("\"output_elements\"");
    if (elements != std::string::npos) state->output_elements = number_behind(json.substr(elements + 17), "", 0);
    error = TRITONBACKEND_ModelSetState(model, state);
  }
  forget(TRITONSERVER_MessageDelete(config));
  return error;
}

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  forget(TRITONBACKEND_ModelState(model, &state));
  delete static_cast<Model*>(state);
  return nullptr;
}

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Model* handle = nullptr;
  if (auto* error = TRITONBACKEND_ModelInstanceModel(instance, &handle)) return error;
  void* state = nullptr;
  if (auto* error = TRITONBACKEND_ModelState(handle, &state)) return error;
  const auto& model = *static_cast<const Model*>(state);
  const uint64_t start = now_ns();
  if (model.delay_us > 0) {
    const uint64_t end = start + model.delay_us * 1000;
    timespec until{static_cast<time_t>(end / 1000000000U), static_cast<long>(end % 1000000000U)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    auto* error = answer(model, requests[i]);
    const uint64_t end = now_ns();
    forget(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], error == nullptr, start, start, end, end));
    forget(error);
    forget(TRITONBACKEND_RequestRelease(requests[i], kTritonReleaseAll));
  }
  const uint64_t end = now_ns();
  forget(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start, end, end));
  return nullptr;
}

}  // extern "C"
