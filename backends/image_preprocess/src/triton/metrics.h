// Counters of this backend on Triton's metrics endpoint, where the server has the metrics API.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/executor.h"
#include "triton/abi.h"

namespace tritonstack::image {

struct MetricFamilyDeleter {
  void operator()(TRITONSERVER_MetricFamily* family) const;
};
struct MetricDeleter {
  void operator()(TRITONSERVER_Metric* metric) const;
};
using MetricFamilyOwner = std::unique_ptr<TRITONSERVER_MetricFamily, MetricFamilyDeleter>;
using MetricOwner = std::unique_ptr<TRITONSERVER_Metric, MetricDeleter>;

// One family a counter, made when the backend starts. Null members where the server has no metrics.
struct MetricFamilies {
  MetricFamilyOwner pictures;
  MetricFamilyOwner failures;
  MetricFamilyOwner fallbacks;

  static MetricFamilies make();
};

// The counters of one model version; they may be counted up from several threads.
class ModelMetrics {
 public:
  ModelMetrics(const MetricFamilies& families, const std::string& model, const std::string& version);

  void count(DecodePath path) const;
  void count(FailureKind kind) const;
  // An output was asked for in GPU memory and came elsewhere.
  void count_fallback() const;

 private:
  std::map<DecodePath, MetricOwner> pictures_;
  std::map<FailureKind, MetricOwner> failures_;
  MetricOwner fallbacks_;
};

}  // namespace tritonstack::image
