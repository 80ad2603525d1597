// JPEGs of kinds that few programs write.
#pragma once

#include <cstdint>
#include <vector>

#include "core/image.h"

namespace tritonstack::image {

struct Sampling {
  int horizontal;
  int vertical;
};

struct JpegKind {
  Size size;
  Sampling sampling;   // of the first component (and of black); the others have 1 × 1
  int components = 3;  // 1 gray, 3 YCbCr, 4 CMYK
  bool progressive = false;
  bool arithmetic = false;
  int restart_rows = 0;
  bool ycck = false;
};

// A picture of edges and slopes, at quality 88.
std::vector<uint8_t> make_jpeg(const JpegKind& kind);

}  // namespace tritonstack::image
