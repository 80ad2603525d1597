#include "triton/model.h"

#include "triton/owners.h"

namespace tritonstack::image {
namespace {

// The newest function used is RequestIsCancelled.
constexpr uint32_t kApiMajor = 1;
constexpr uint32_t kApiMinor = 16;
constexpr uint32_t kConfigVersion = 1;

void check_api_version() {
  uint32_t major = 0;
  uint32_t minor = 0;
  check(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major == kApiMajor && minor >= kApiMinor) return;
  throw TritonError(kTritonUnsupported, "image_preprocess does not fit this Triton; given backend API " +
                                            std::to_string(major) + "." + std::to_string(minor) + "; expected " +
                                            std::to_string(kApiMajor) + "." + std::to_string(kApiMinor) +
                                            " or a newer " + std::to_string(kApiMajor) +
                                            ".x, as in Triton 2.39 (23.10) and later");
}

std::string name_of(TRITONBACKEND_Model* handle) {
  const char* name = nullptr;
  check(TRITONBACKEND_ModelName(handle, &name));
  return name;
}

std::string version_of(TRITONBACKEND_Model* handle) {
  uint64_t version = 0;
  check(TRITONBACKEND_ModelVersion(handle, &version));
  return std::to_string(version);
}

Json config_of(TRITONBACKEND_Model* handle) {
  TRITONSERVER_Message* message = nullptr;
  check(TRITONBACKEND_ModelConfig(handle, kConfigVersion, &message));
  const MessageOwner owner(message);
  return Json::parse(json_of(message));
}

void complete(TRITONBACKEND_Model* handle, Json& config, int64_t default_batch) {
  bool allowed = false;
  check(TRITONBACKEND_ModelAutoCompleteConfig(handle, &allowed));
  if (!allowed || !complete_model_config(config, default_batch)) return;
  const std::string text = config.dump();
  TRITONSERVER_Message* message = nullptr;
  check(TRITONSERVER_MessageNewFromSerializedJson(&message, text.data(), text.size()));
  const MessageOwner owner(message);
  check(TRITONBACKEND_ModelSetConfig(handle, kConfigVersion, message));
}

}  // namespace

Backend::Backend(TRITONBACKEND_Backend* handle) {
  check_api_version();
  TRITONSERVER_Message* message = nullptr;  // stays the server's
  check(TRITONBACKEND_BackendConfig(handle, &message));
  const Json config = Json::parse(json_of(message));
  const Json& flags = config.at("cmdline");
  nvjpeg_path_ = flags.at("nvjpeg_path").string();
  default_batch_ = flags.at("default-max-batch-size").whole(default_batch_);
  metrics_ = MetricFamilies::make();
}

Model::Model(TRITONBACKEND_Model* handle, const Backend& backend)
    : backend_(backend),
      name_(name_of(handle)),
      config_(load_config(handle, backend)),
      metrics_(backend.metrics(), name_, version_of(handle)) {}

ModelConfig Model::load_config(TRITONBACKEND_Model* handle, const Backend& backend) {
  Json config = config_of(handle);
  complete(handle, config, backend.default_batch());
  return read_model_config(config);
}

}  // namespace tritonstack::image
