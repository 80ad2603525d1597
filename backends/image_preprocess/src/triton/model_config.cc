#include "triton/model_config.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"

namespace tritonstack::image {
namespace {

constexpr const char* kForOthers = "tritonstack.";  // parameters that clients read

Settings settings_of(const Json& config) {
  Settings settings;
  for (const auto& [name, value] : config.at("parameters").members()) {
    if (name.rfind(kForOthers, 0) == 0) continue;
    if (!is_setting(name)) {
      throw ConfigError("unknown parameter '" + name + "'; expected one of " + setting_names());
    }
    settings[name] = value.at("string_value").string();
  }
  return settings;
}

std::vector<int64_t> dims_of(const Json& tensor) {
  std::vector<int64_t> dims;
  for (const Json& item : tensor.at("dims").items()) dims.push_back(item.whole(0));
  return dims;
}

std::string text_of(const std::vector<int64_t>& dims) {
  std::string text;
  for (const int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

std::string text_of(const Json& tensors) {
  std::string text;
  for (const Json& tensor : tensors.items()) {
    text += (text.empty() ? "" : ", ") + tensor.at("data_type").string() + " " + text_of(dims_of(tensor));
  }
  return text.empty() ? "none" : text;
}

void read_input(const Json& config, ModelConfig& result) {
  const Json& inputs = config.at("input");
  if (inputs.items().size() == 1) {
    const Json& input = inputs.items().front();
    result.input = input.at("name").string();
    const std::string& type = input.at("data_type").string();
    const std::vector<int64_t> dims = dims_of(input);
    result.encoded = type == "TYPE_STRING";
    if (type == "TYPE_STRING" && dims == std::vector<int64_t>{1}) return;
    if (type == "TYPE_UINT8" && dims == std::vector<int64_t>{-1, -1, 3}) return;
  }
  throw ConfigError("the inputs are " + text_of(inputs) +
                    "; expected one, of pictures: TYPE_STRING with dims [1] for encoded ones, or TYPE_UINT8 with dims "
                    "[-1, -1, 3] for pixels");
}

ElementType element_of(const Json& output, TritonDataType& type) {
  const std::string& name = output.at("data_type").string();
  if (name == "TYPE_FP32") {
    type = kTritonFp32;
    return ElementType::f32;
  }
  if (name == "TYPE_FP16") {
    type = kTritonFp16;
    return ElementType::f16;
  }
  if (name == "TYPE_BF16") {
    type = kTritonBf16;
    return ElementType::bf16;
  }
  if (name == "TYPE_UINT8") {
    type = kTritonUint8;
    return ElementType::u8;
  }
  throw ConfigError("the first output is " + name + "; expected one of TYPE_FP32, TYPE_FP16, TYPE_BF16, TYPE_UINT8");
}

std::vector<int64_t> sample_dims(const Operation& operation) {
  int64_t height = -1;
  int64_t width = -1;
  if (const auto size = fixed_output_size(operation)) {
    height = size->height;
    width = size->width;
  }
  if (operation.layout == Layout::nhwc) return {height, width, kChannels};
  return {kChannels, height, width};
}

void check_output_dims(const Json& output, const Operation& operation) {
  const std::vector<int64_t> has = dims_of(output);
  const std::vector<int64_t> made = sample_dims(operation);
  bool fits = has.size() == made.size();
  for (size_t i = 0; fits && i < made.size(); ++i) fits = has[i] == -1 || made[i] == -1 || has[i] == made[i];
  if (!fits) {
    throw ConfigError("pictures become " + text_of(made) + " (" + (operation.layout == Layout::nhwc ? "NHWC" : "NCHW") +
                      "), the first output has dims " + text_of(has));
  }
}

void check_geometry_output(const Json& config, ModelConfig& result) {
  const std::vector<Json>& outputs = config.at("output").items();
  if (outputs.size() == 1) return;
  const Json& second = outputs[1];
  const std::vector<int64_t> dims = dims_of(second);
  if (outputs.size() > 2 || second.at("data_type").string() != "TYPE_FP32" || dims != std::vector<int64_t>{8}) {
    throw ConfigError("the second output is the geometry; given " + second.at("data_type").string() + " " +
                      text_of(dims) + "; expected TYPE_FP32 [8], and no further output");
  }
  result.geometry_output = second.at("name").string();
}

// Triton has put the GPUs of every group into the config by the time a backend sees it.
int count_gpu_instances(const Json& config) {
  int64_t count = 0;
  for (const Json& group : config.at("instance_group").items()) {
    const std::string& kind = group.at("kind").string();
    if (kind != "KIND_GPU" && kind != "KIND_AUTO") continue;
    const auto gpus = static_cast<int64_t>(group.at("gpus").items().size());
    count += std::max<int64_t>(group.at("count").whole(1), 1) * std::max<int64_t>(gpus, 1);
  }
  return static_cast<int>(std::min<int64_t>(count, std::numeric_limits<int>::max()));
}

Json tensor(const char* name, const char* type, const std::vector<int64_t>& dims) {
  Json result = Json::object();
  result.set("name", Json::text(name));
  result.set("data_type", Json::text(type));
  std::vector<Json> sides;
  for (const int64_t dim : dims) sides.push_back(Json::number(dim));
  result.set("dims", Json::array(std::move(sides)));
  return result;
}

}  // namespace

ModelConfig read_model_config(const Json& config) {
  ModelConfig result;
  result.batched = config.at("max_batch_size").whole(0) > 0;
  const Settings settings = settings_of(config);
  read_input(config, result);
  if (config.at("output").items().empty()) throw ConfigError("no output; expected one of shape [3, height, width]");
  const Json& output = config.at("output").items().front();
  result.output = output.at("name").string();
  result.operation = parse_operation(settings, element_of(output, result.output_type));
  check_output_dims(output, result.operation);
  check_geometry_output(config, result);
  result.gpu_instances = count_gpu_instances(config);
  return result;
}

int ModelConfig::decode_threads() const {
  // Each thread keeps decoder states and device memory of its own.
  constexpr int kMost = 16;
  if (operation.decode_threads) return *operation.decode_threads;
  return std::clamp(usable_processors() / std::max(gpu_instances, 1), 1, kMost);
}

bool complete_model_config(Json& config, int64_t default_batch) {
  if (!config.at("input").items().empty() || !config.at("output").items().empty()) return false;
  const Operation operation = parse_operation(settings_of(config), ElementType::f32);
  config.set("input", Json::array({tensor("image_bytes", "TYPE_STRING", {1})}));
  config.set("output", Json::array({tensor("preprocessed", "TYPE_FP32", sample_dims(operation))}));
  if (config.at("max_batch_size").whole(0) == 0) config.set("max_batch_size", Json::number(default_batch));
  const bool scheduled = config.at("dynamic_batching").kind() == Json::Kind::object ||
                         config.at("sequence_batching").kind() == Json::Kind::object;
  if (!scheduled && config.at("max_batch_size").whole(0) > 1) config.set("dynamic_batching", Json::object());
  return true;
}

}  // namespace tritonstack::image
