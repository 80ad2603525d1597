#include "triton/metrics.h"

#include <utility>

#include "triton/owners.h"

namespace tritonstack::image {
namespace {

struct ParameterDeleter {
  void operator()(TRITONSERVER_Parameter* parameter) const { TRITONSERVER_ParameterDelete(parameter); }
};
using ParameterOwner = std::unique_ptr<TRITONSERVER_Parameter, ParameterDeleter>;
using Labels = std::vector<std::pair<std::string, std::string>>;

MetricFamilyOwner family(const char* name, const char* description) {
  if (&TRITONSERVER_MetricFamilyNew == nullptr || &TRITONSERVER_ParameterNew == nullptr) return nullptr;
  TRITONSERVER_MetricFamily* made = nullptr;
  // A server that runs with metrics switched off answers with an error, which is no trouble.
  const ErrorOwner error(TRITONSERVER_MetricFamilyNew(&made, kTritonCounter, name, description));
  return MetricFamilyOwner(error ? nullptr : made);
}

MetricOwner metric(const MetricFamilyOwner& family, const Labels& labels) {
  if (!family) return nullptr;
  std::vector<ParameterOwner> owners;
  std::vector<const TRITONSERVER_Parameter*> parameters;
  for (const auto& [name, value] : labels) {
    owners.emplace_back(TRITONSERVER_ParameterNew(name.c_str(), kTritonString, value.c_str()));
    parameters.push_back(owners.back().get());
  }
  TRITONSERVER_Metric* made = nullptr;
  const ErrorOwner error(TRITONSERVER_MetricNew(&made, family.get(), parameters.data(), parameters.size()));
  return MetricOwner(error ? nullptr : made);
}

void increment(const MetricOwner& metric) {
  if (metric) ignore(TRITONSERVER_MetricIncrement(metric.get(), 1.0));
}

constexpr DecodePath kPaths[] = {DecodePath::raw,      DecodePath::cpu_jpeg,     DecodePath::cpu_png,
                                 DecodePath::cpu_webp, DecodePath::gpu_hardware, DecodePath::gpu_hybrid};
constexpr FailureKind kKinds[] = {FailureKind::empty,     FailureKind::format,  FailureKind::damaged,
                                  FailureKind::too_large, FailureKind::policy,  FailureKind::geometry,
                                  FailureKind::input,     FailureKind::internal};

}  // namespace

void MetricFamilyDeleter::operator()(TRITONSERVER_MetricFamily* family) const {
  ignore(TRITONSERVER_MetricFamilyDelete(family));
}

void MetricDeleter::operator()(TRITONSERVER_Metric* metric) const {
  ignore(TRITONSERVER_MetricDelete(metric));
}

MetricFamilies MetricFamilies::make() {
  MetricFamilies families;
  families.pictures = family("image_preprocess_pictures_total", "Pictures processed, by the path of their pixels");
  families.failures = family("image_preprocess_failures_total", "Pictures that failed, by reason");
  families.fallbacks =
      family("image_preprocess_output_fallbacks_total", "Outputs asked for in GPU memory that were granted elsewhere");
  return families;
}

ModelMetrics::ModelMetrics(const MetricFamilies& families, const std::string& model, const std::string& version) {
  const auto with = [&](const char* name, const char* value) {
    return Labels{{"model", model}, {"version", version}, {name, value}};
  };
  for (const DecodePath path : kPaths) pictures_[path] = metric(families.pictures, with("path", name_of(path)));
  for (const FailureKind kind : kKinds) failures_[kind] = metric(families.failures, with("reason", name_of(kind)));
  fallbacks_ = metric(families.fallbacks, {{"model", model}, {"version", version}});
}

void ModelMetrics::count(DecodePath path) const {
  const auto found = pictures_.find(path);
  if (found != pictures_.end()) increment(found->second);
}

void ModelMetrics::count(FailureKind kind) const {
  const auto found = failures_.find(kind);
  if (found != failures_.end()) increment(found->second);
}

void ModelMetrics::count_fallback() const {
  increment(fallbacks_);
}

}  // namespace tritonstack::image
