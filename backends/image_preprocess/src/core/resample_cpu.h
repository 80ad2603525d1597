// Two-pass resampling on the CPU, in Pillow's order, over nothing but the rows and columns under the crop.
#pragma once

#include <cstdint>
#include <vector>

#include "core/filter.h"
#include "core/geometry.h"
#include "core/image.h"
#include "core/normalise.h"
#include "core/operation.h"

namespace tritonstack::image {

// Turns source pixels into a sample. Keeps its buffers and the last weights between calls, so one is meant for one
// thread and many pictures.
class Resampler {
 public:
  explicit Resampler(const Operation& operation);

  // `source` holds the pixels of `region` (in coordinates of geometry.source), which must hold needed_source(). Writes
  // the whole sample to `output`, which has sample_bytes() bytes.
  void run(const Geometry& geometry, PixelView source, Rect region, void* output);

  // Gives back buffers that grew beyond what usual pictures need.
  void trim();

 private:
  // Weights of one axis, kept as long as the next picture has the same sizes.
  struct Axis {
    int in = -1;
    int out = -1;
    int begin = -1;
    int count = -1;
    Taps<double> exact;
    Taps<int32_t> fixed;
    Taps<float> plain;
    std::vector<int32_t> fixed_pairs;
    std::vector<float> plain_pairs;
  };

  void prepare(Axis& axis, int in, int out, int begin, int count);
  void resample_exactly(const Geometry& geometry, PixelView cut, int first_row, int rows, void* output);
  void resample_exactly_rows_first(const Geometry& geometry, PixelView cut, void* output);
  void resample_in_float(const Geometry& geometry, PixelView cut, int first_row, int rows, void* output);
  void pick_nearest(const Geometry& geometry, PixelView cut, void* output);
  const uint8_t* readable_row(PixelView cut, int row, int slot);
  template <typename Temporary, typename Pass>
  void narrow(PixelView cut, int first_row, int rows, Temporary* out, size_t stride, Pass pass);

  Operation operation_;
  Normaliser normaliser_;
  Axis columns_;
  Axis rows_;
  std::vector<uint8_t> narrow_;
  std::vector<float> narrow_float_;
  std::vector<uint8_t> small_;
  std::vector<float> small_float_;
  std::vector<uint8_t> last_rows_;
  int last_readable_ = 0;  // row of the cut behind which memory ends
};

}  // namespace tritonstack::image
