#include "triton/request.h"

#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/gpu.h"

namespace tritonstack::image {
namespace {

constexpr size_t kLengthBytes = 4;

MemoryPlace place_of(int memory_type, int64_t memory_id) {
  const Memory memory = memory_type == kTritonGpu      ? Memory::gpu
                        : memory_type == kTritonPinned ? Memory::pinned
                                                       : Memory::cpu;
  return {memory, static_cast<int>(memory_id)};
}

int memory_type_of(Memory memory) {
  switch (memory) {
    case Memory::gpu:
      return kTritonGpu;
    case Memory::pinned:
      return kTritonPinned;
    case Memory::cpu:
      break;
  }
  return kTritonCpu;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t side : shape) text += (text.empty() ? "" : ", ") + std::to_string(side);
  return "[" + text + "]";
}

void require_gpu() {
  if (!has_gpu()) {
    throw TritonError(kTritonUnsupported,
                      "image_preprocess: a tensor lies in GPU memory, and this backend was built without CUDA");
  }
}

uint32_t read_length(const uint8_t* at) {
  return uint32_t{at[0]} | (uint32_t{at[1]} << 8) | (uint32_t{at[2]} << 16) | (uint32_t{at[3]} << 24);
}

int code_of(FailureKind kind) {
  return kind == FailureKind::internal ? kTritonInternal : kTritonInvalidArg;
}

}  // namespace

RequestTask::RequestTask(TRITONBACKEND_Request* handle, const Model& model) : handle_(handle), model_(model) {
  TRITONBACKEND_Response* response = nullptr;
  check(TRITONBACKEND_ResponseNew(&response, handle));
  response_.reset(response);
}

void RequestTask::refuse(int code, const std::string& message) {
  if (!refusal_) refusal_ = Refusal{code, message};
}

void RequestTask::refuse_for(size_t picture, const Failure& failure) {
  model_.metrics().count(failure.kind);
  const std::string which =
      jobs_.size() > 1 ? "picture " + std::to_string(picture) + " of " + std::to_string(jobs_.size()) : "the picture";
  refuse(code_of(failure.kind), "image_preprocess: " + which + " is " + failure.reason);
}

void RequestTask::gather(MemoryPlace preferred) {
  try {
    bool cancelled = false;
    check(TRITONBACKEND_RequestIsCancelled(handle_, &cancelled));
    if (cancelled) {
      refuse(kTritonCancelled, "image_preprocess: the request was cancelled");
      return;
    }
    read_wanted_outputs();
    TRITONBACKEND_Input* input = nullptr;
    check(TRITONBACKEND_RequestInput(handle_, model_.config().input.c_str(), &input));
    const int64_t* sides = nullptr;
    uint32_t dimensions = 0;
    uint32_t buffers = 0;
    check(TRITONBACKEND_InputProperties(input, nullptr, nullptr, &sides, &dimensions, nullptr, &buffers));
    const std::vector<int64_t> shape(sides, sides + dimensions);
    if (model_.config().encoded) {
      gather_encoded(input, shape, buffers);
    } else {
      gather_raw(input, shape, buffers, preferred);
    }
    for (size_t i = 0; i < jobs_.size() && !refused(); ++i) {
      plan(jobs_[i]);
      if (jobs_[i].failure) refuse_for(i, *jobs_[i].failure);
    }
  } catch (const ImageError& error) {
    model_.metrics().count(error.kind());
    refuse(code_of(error.kind()), std::string("image_preprocess: ") + error.what());
  } catch (const TritonError& error) {
    refuse(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    refuse(kTritonUnavailable, "image_preprocess: out of memory");
  } catch (const std::exception& error) {
    refuse(kTritonInternal, error.what());
  }
}

void RequestTask::read_wanted_outputs() {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(handle_, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(handle_, i, &name));
    wants_pixels_ = wants_pixels_ || model_.config().output == name;
    wants_geometry_ = wants_geometry_ || model_.config().geometry_output == std::string(name);
  }
}

Bytes RequestTask::joined(TRITONBACKEND_Input* input, uint32_t buffers, MemoryPlace preferred, bool on_host,
                          MemoryPlace& place) {
  for (uint32_t i = 0; i < buffers; ++i) {
    const void* data = nullptr;
    uint64_t bytes = 0;
    int memory_type = memory_type_of(preferred.memory);
    int64_t memory_id = preferred.device;
    check(TRITONBACKEND_InputBuffer(input, i, &data, &bytes, &memory_type, &memory_id));
    const MemoryPlace source = place_of(memory_type, memory_id);
    const bool on_gpu = source.memory == Memory::gpu;
    if (buffers == 1 && !(on_gpu && on_host)) {
      place = source;
      return {static_cast<const uint8_t*>(data), bytes};
    }
    const size_t start = joined_.size();
    joined_.resize(start + bytes);
    if (bytes == 0) continue;
    if (on_gpu) {
      require_gpu();
      copy_to_host(joined_.data() + start, data, bytes, source.device);
    } else {
      std::memcpy(joined_.data() + start, data, bytes);
    }
  }
  place = {};
  return {joined_.data(), joined_.size()};
}

// Shape [pictures, 1], or [1] without batching: each picture is a length of four bytes and as many bytes.
void RequestTask::gather_encoded(TRITONBACKEND_Input* input, const std::vector<int64_t>& shape, uint32_t buffers) {
  int64_t count = 1;
  for (const int64_t side : shape) count *= side;
  MemoryPlace place;
  const Bytes all = joined(input, buffers, {}, true, place);
  size_t at = 0;
  while (at < all.size) {
    if (all.size - at < kLengthBytes) throw ImageError(FailureKind::input, "the input's bytes are cut off");
    const size_t length = read_length(all.data + at);
    at += kLengthBytes;
    if (length > all.size - at) {
      throw ImageError(FailureKind::input, "the input's bytes are cut off; given " + std::to_string(all.size - at) +
                                               " bytes of a picture; expected " + std::to_string(length));
    }
    ImageJob job;
    job.encoded = {all.data + at, length};
    jobs_.push_back(std::move(job));
    at += length;
  }
  if (jobs_.empty() || static_cast<int64_t>(jobs_.size()) != count) {
    throw ImageError(FailureKind::input,
                     "the input holds " + std::to_string(jobs_.size()) + " pictures, its shape is " + text_of(shape));
  }
}

// Shape [frames, height, width, 3], or without the first axis where the model does not batch.
void RequestTask::gather_raw(TRITONBACKEND_Input* input, const std::vector<int64_t>& shape, uint32_t buffers,
                             MemoryPlace preferred) {
  const size_t axes = model_.config().batched ? 4 : 3;
  bool valid = shape.size() == axes && shape.back() == kChannels;
  for (const int64_t side : shape) valid = valid && side >= 1 && side <= std::numeric_limits<int>::max();
  if (!valid) {
    throw ImageError(FailureKind::input, "the input's shape is " + text_of(shape) + "; expected [" +
                                             (axes == 4 ? "frames, " : "") + "height, width, 3], none of them 0");
  }
  const Size size{static_cast<int>(shape[axes - 3]), static_cast<int>(shape[axes - 2])};
  const Operation& operation = model_.config().operation;
  if (pixels(size) > operation.max_pixels) {
    throw ImageError(FailureKind::too_large, "frames are too large; given " + to_string(size) +
                                                 " pixels (height × width); expected at most " +
                                                 std::to_string(operation.max_pixels) + " (parameter max_pixels)");
  }
  const size_t frames = axes == 4 ? static_cast<size_t>(shape.front()) : 1;
  const size_t frame_bytes = static_cast<size_t>(pixels(size)) * kChannels;
  MemoryPlace place;
  const Bytes all = joined(input, buffers, preferred, false, place);
  if (all.size / frame_bytes != frames || all.size % frame_bytes != 0) {
    throw ImageError(FailureKind::input,
                     "the input has " + std::to_string(all.size) + " bytes, its shape is " + text_of(shape));
  }
  for (size_t i = 0; i < frames; ++i) {
    ImageJob job;
    job.raw = {all.data + i * frame_bytes, size, static_cast<size_t>(size.width) * kChannels};
    job.raw_place = place;
    jobs_.push_back(std::move(job));
  }
}

void RequestTask::plan(ImageJob& job) {
  const Operation& operation = model_.config().operation;
  try {
    Size size = job.raw.size;
    if (model_.config().encoded) {
      job.header = read_header(job.encoded, operation);
      size = job.header.oriented();
    }
    job.geometry = plan_geometry(operation, size);
    if (job.geometry.output != jobs_.front().geometry.output) {
      throw ImageError(FailureKind::geometry, "of another output size than the first of the request; given " +
                                                  to_string(job.geometry.output) + "; expected " +
                                                  to_string(jobs_.front().geometry.output) + ", or a request for each");
    }
  } catch (const ImageError& error) {
    job.failure = Failure{error.kind(), error.what()};
  }
}

RequestTask::Buffer RequestTask::output_buffer(const std::string& name, TritonDataType type,
                                               const std::vector<int64_t>& shape, size_t bytes, MemoryPlace preferred) {
  TRITONBACKEND_Output* output = nullptr;
  check(TRITONBACKEND_ResponseOutput(response_.get(), &output, name.c_str(), type, shape.data(),
                                     static_cast<uint32_t>(shape.size())));
  Buffer buffer;
  int memory_type = memory_type_of(preferred.memory);
  int64_t memory_id = preferred.device;
  check(TRITONBACKEND_OutputBuffer(output, &buffer.data, bytes, &memory_type, &memory_id));
  buffer.place = place_of(memory_type, memory_id);
  return buffer;
}

void RequestTask::allocate(MemoryPlace preferred) {
  if (refused()) return;
  try {
    if (wants_pixels_) allocate_pixels(preferred);
    if (wants_geometry_) allocate_geometry();
  } catch (const TritonError& error) {
    refuse(error.code(), error.what());
  } catch (const std::exception& error) {
    refuse(kTritonInternal, error.what());
  }
}

// Where the request wants an output that is best made in `preferred`. A reply over the wire and system shared memory are
// the host's whatever is asked for; an ensemble takes what the step before offers.
MemoryPlace RequestTask::wanted_place(const std::string& name, size_t bytes, MemoryPlace preferred) {
  int memory_type = memory_type_of(preferred.memory);
  int64_t memory_id = preferred.device;
  const ErrorOwner error(
      TRITONBACKEND_RequestOutputBufferProperties(handle_, name.c_str(), &bytes, &memory_type, &memory_id));
  // Not every allocator of a server can be asked.
  return error ? preferred : place_of(memory_type, memory_id);
}

void RequestTask::allocate_pixels(MemoryPlace preferred) {
  const ModelConfig& config = model_.config();
  const Size size = jobs_.front().geometry.output;
  std::vector<int64_t> shape;
  if (config.batched) shape.push_back(static_cast<int64_t>(jobs_.size()));
  if (config.operation.layout == Layout::nchw) shape.push_back(kChannels);
  shape.push_back(size.height);
  shape.push_back(size.width);
  if (config.operation.layout == Layout::nhwc) shape.push_back(kChannels);
  const size_t bytes = sample_bytes(config.operation, size);
  const MemoryPlace wanted = wanted_place(config.output, bytes * jobs_.size(), preferred);
  const Buffer buffer = output_buffer(config.output, config.output_type, shape, bytes * jobs_.size(), wanted);
  if (wanted.memory == Memory::gpu && buffer.place.memory != Memory::gpu) {
    model_.metrics().count_fallback();
    if (config.operation.fail_without_gpu_output) {
      refuse(kTritonUnavailable,
             "image_preprocess: no GPU memory for the output, and the parameter on_gpu_output_unavailable is fail; "
             "next: a larger --cuda-memory-pool-byte-size, or CUDA shared memory for the output");
      return;
    }
  }
  for (size_t i = 0; i < jobs_.size(); ++i) {
    jobs_[i].output = static_cast<uint8_t*>(buffer.data) + i * bytes;
    jobs_[i].output_place = buffer.place;
  }
}

void RequestTask::allocate_geometry() {
  std::vector<float> values;
  for (const ImageJob& job : jobs_) {
    const std::array<float, 8> described = describe(job.geometry);
    values.insert(values.end(), described.begin(), described.end());
  }
  std::vector<int64_t> shape{8};
  if (model_.config().batched) shape.insert(shape.begin(), static_cast<int64_t>(jobs_.size()));
  const size_t bytes = values.size() * sizeof(float);
  const Buffer buffer = output_buffer(*model_.config().geometry_output, kTritonFp32, shape, bytes, {});
  if (buffer.place.memory == Memory::gpu) {
    require_gpu();
    copy_from_host(buffer.data, values.data(), bytes, buffer.place.device);
  } else {
    std::memcpy(buffer.data, values.data(), bytes);
  }
}

void RequestTask::respond() {
  for (size_t i = 0; i < jobs_.size() && !refused(); ++i) {
    if (jobs_[i].failure) refuse_for(i, *jobs_[i].failure);
  }
  for (const ImageJob& job : jobs_) {
    if (!refused()) model_.metrics().count(job.path);
  }
  const ErrorOwner error(refusal_ ? TRITONSERVER_ErrorNew(refusal_->code, refusal_->message.c_str()) : nullptr);
  // The server takes the response whatever it answers.
  ignore(TRITONBACKEND_ResponseSend(response_.release(), kTritonResponseFinal, error.get()));
}

}  // namespace tritonstack::image
