// One model instance: runs batches.
#pragma once

#include <memory>
#include <vector>

#include "core/executor.h"
#include "triton/abi.h"
#include "triton/model.h"

namespace tritonstack::image {

class Instance {
 public:
  // Raises TritonError, ConfigError, and what the executor raises.
  Instance(TRITONBACKEND_ModelInstance* handle, const Model& model);

  // Answers and releases every request, whatever is wrong with some of them. Raises only before the first answer, when
  // all requests are still the server's.
  void execute(TRITONBACKEND_Request** requests, uint32_t count);

 private:
  static std::unique_ptr<Executor> make_executor(TRITONBACKEND_ModelInstance* handle, const Model& model);

  TRITONBACKEND_ModelInstance* handle_;
  const Model& model_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace tritonstack::image
