// One request of a batch: its pictures on the way in, its tensors on the way out.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/executor.h"
#include "triton/abi.h"
#include "triton/model.h"
#include "triton/owners.h"

namespace tritonstack::image {

// What to answer instead of tensors.
struct Refusal {
  int code = kTritonInvalidArg;
  std::string message;
};

class RequestTask {
 public:
  // Takes no ownership of the request; makes its response. Raises TritonError.
  RequestTask(TRITONBACKEND_Request* handle, const Model& model);

  // Finds the pictures and their geometry. What is wrong with the request ends up in its refusal.
  void gather(MemoryPlace preferred);
  // Asks Triton for the output buffers and hands them to the jobs.
  void allocate(MemoryPlace preferred);
  // Writes the geometry, sends the response and forgets it. Failures of jobs become the refusal.
  void respond();

  // Refuses a request that nothing was said about yet.
  void refuse(int code, const std::string& message);
  bool refused() const { return refusal_.has_value(); }

  TRITONBACKEND_Request* handle() const { return handle_; }
  std::vector<ImageJob>& jobs() { return jobs_; }
  const std::vector<ImageJob>& jobs() const { return jobs_; }
  bool wants_pixels() const { return wants_pixels_; }

 private:
  struct Buffer {
    void* data = nullptr;
    MemoryPlace place;
  };

  void read_wanted_outputs();
  void gather_encoded(TRITONBACKEND_Input* input, const std::vector<int64_t>& shape, uint32_t buffers);
  void gather_raw(TRITONBACKEND_Input* input, const std::vector<int64_t>& shape, uint32_t buffers,
                  MemoryPlace preferred);
  void plan(ImageJob& job);
  // The input's bytes in one piece; host memory where `on_host`.
  Bytes joined(TRITONBACKEND_Input* input, uint32_t buffers, MemoryPlace preferred, bool on_host, MemoryPlace& place);
  Buffer output_buffer(const std::string& name, TritonDataType type, const std::vector<int64_t>& shape, size_t bytes,
                       MemoryPlace preferred);
  MemoryPlace wanted_place(const std::string& name, size_t bytes, MemoryPlace preferred);
  void allocate_pixels(MemoryPlace preferred);
  void allocate_geometry();
  void refuse_for(size_t picture, const Failure& failure);

  TRITONBACKEND_Request* handle_;
  const Model& model_;
  ResponseOwner response_;
  std::optional<Refusal> refusal_;
  std::vector<ImageJob> jobs_;
  std::vector<uint8_t> joined_;
  bool wants_pixels_ = false;
  bool wants_geometry_ = false;
};

}  // namespace tritonstack::image
