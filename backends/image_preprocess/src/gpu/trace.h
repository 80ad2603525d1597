// Named ranges for profilers. NVTX 3 comes with the CUDA toolkit and costs nothing while no profiler listens; without its
// header the ranges are empty.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define TRITONSTACK_HAS_NVTX 1
#endif

namespace tritonstack::image {

class Range {
 public:
#ifdef TRITONSTACK_HAS_NVTX
  explicit Range(const char* name) { static_cast<void>(nvtxRangePushA(name)); }
  ~Range() { static_cast<void>(nvtxRangePop()); }
#else
  explicit Range(const char* /*name*/) {}
  ~Range() = default;
#endif
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace tritonstack::image
