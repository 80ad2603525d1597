// The whole way of an encoded picture through the CPU path, as libFuzzer calls it.
//
// The first byte chooses the settings, the rest is the picture. Every outcome but a sample or a named failure is a
// defect; sanitizers tell the rest.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/executor.h"

using namespace tritonstack::image;

namespace {

const Settings kSettings[] = {
    {{"max_pixels", "300000"}},
    {{"max_pixels", "300000"}, {"resize", "exact"}, {"height", "17"}, {"width", "23"}, {"interpolation", "bicubic"}},
    {{"max_pixels", "300000"}, {"resize", "shorter"}, {"height", "20"}, {"center_crop", "16x9"}, {"layout", "NHWC"}},
    {{"max_pixels", "300000"}, {"resize", "letterbox"}, {"height", "24"}, {"width", "24"}, {"round_u8", "false"}},
    {{"max_pixels", "300000"},
     {"crop_fraction", "0.3"},
     {"resize", "exact"},
     {"height", "8"},
     {"width", "5"},
     {"antialias", "false"}},
    {{"max_pixels", "300000"}, {"resize", "exact"}, {"height", "9"}, {"width", "40"}, {"interpolation", "nearest"}},
};
constexpr size_t kCount = sizeof kSettings / sizeof kSettings[0];

struct Setup {
  Operation operation;
  std::unique_ptr<Executor> executor;
};

std::vector<Setup> make_setups() {
  std::vector<Setup> setups;
  for (const Settings& settings : kSettings) {
    Setup setup;
    setup.operation = parse_operation(settings, ElementType::f16);
    setup.executor = make_cpu_executor(setup.operation);
    setups.push_back(std::move(setup));
  }
  return setups;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Setup> setups = make_setups();
  if (size == 0) return 0;
  const Setup& setup = setups[data[0] % kCount];
  // A copy that ends where the picture ends, so that reading on is seen.
  const std::vector<uint8_t> picture(data + 1, data + size);
  ImageJob job;
  job.encoded = {picture.data(), picture.size()};
  try {
    job.header = read_header(job.encoded, setup.operation);
    job.geometry = plan_geometry(setup.operation, job.header.oriented());
  } catch (const ImageError&) {
    return 0;
  }
  std::vector<uint8_t> sample(sample_bytes(setup.operation, job.geometry.output));
  job.output = sample.data();
  setup.executor->run(&job, 1);
  if (job.failure && job.failure->kind == FailureKind::internal) std::abort();
  return 0;
}
