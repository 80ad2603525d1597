// What a model's config.pbtxt says to this backend.
#pragma once

#include <optional>
#include <string>

#include "core/operation.h"
#include "triton/abi.h"
#include "triton/json.h"

namespace tritonstack::image {

struct ModelConfig {
  Operation operation;
  bool batched = false;
  bool encoded = true;  // TYPE_STRING pictures; else TYPE_UINT8 frames
  std::string input;
  std::string output;
  TritonDataType output_type = kTritonFp32;
  std::optional<std::string> geometry_output;
  int gpu_instances = 0;  // that Triton makes of this model, over all GPUs

  // Of the pool of one GPU instance: what the parameter says, else an even share of the processors, 1 to 16.
  int decode_threads() const;
};

// Raises ConfigError naming what is wrong, what was given and what is expected.
ModelConfig read_model_config(const Json& config);

// Completes a config without inputs and outputs: encoded pictures in, TYPE_FP32 samples of the size that the parameters
// tell out. `default_batch` counts where the config states no max_batch_size. False where nothing was to be done.
bool complete_model_config(Json& config, int64_t default_batch);

}  // namespace tritonstack::image
