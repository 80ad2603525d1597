// State of the backend and of one model version.
#pragma once

#include <string>

#include "triton/abi.h"
#include "triton/metrics.h"
#include "triton/model_config.h"

namespace tritonstack::image {

// Made when the library is loaded, before any model.
class Backend {
 public:
  // Raises TritonError where the server's API does not fit, with both versions.
  explicit Backend(TRITONBACKEND_Backend* handle);

  const MetricFamilies& metrics() const { return metrics_; }
  const std::string& nvjpeg_path() const { return nvjpeg_path_; }
  int64_t default_batch() const { return default_batch_; }

 private:
  MetricFamilies metrics_;
  std::string nvjpeg_path_;
  int64_t default_batch_ = 4;
};

class Model {
 public:
  // Reads the config, completing it where Triton allows. Raises ConfigError and TritonError.
  Model(TRITONBACKEND_Model* handle, const Backend& backend);

  const std::string& name() const { return name_; }
  const ModelConfig& config() const { return config_; }
  const ModelMetrics& metrics() const { return metrics_; }
  const Backend& backend() const { return backend_; }

 private:
  static ModelConfig load_config(TRITONBACKEND_Model* handle, const Backend& backend);

  const Backend& backend_;
  std::string name_;
  ModelConfig config_;
  ModelMetrics metrics_;
};

}  // namespace tritonstack::image
