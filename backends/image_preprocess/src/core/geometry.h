// Where the pixels of a sample come from: all roundings of the sizes and offsets, in one place.
#pragma once

#include <array>

#include "core/operation.h"

namespace tritonstack::image {

// `source` (oriented) → `source_crop` of it → resampled to `resized` → laid into `output` with its top left corner at
// (`top`, `left`). These are positive for the pad of a letterbox and negative for what the centre crop cuts off; output
// pixels outside of the resized picture have the pad value.
struct Geometry {
  Size source;
  Rect source_crop;
  Size resized;
  int top = 0;
  int left = 0;
  Size output;

  // The part of the output that the resized picture covers, in output coordinates.
  Rect covered() const;
};

// Raises ImageError(geometry) where the picture is smaller than the centre crop or would become too large.
Geometry plan_geometry(const Operation& operation, Size source);

// The second output: scale_x, scale_y, pad_left, pad_top, original height and width, resized height and width.
// x_output = x_original · scale_x + pad_left holds for every setting, also with crops (pad_left is then negative).
std::array<float, 8> describe(const Geometry& geometry);

// The part of the source that outputs depend on, in source coordinates: what must be decoded.
Rect needed_source(const Operation& operation, const Geometry& geometry);

}  // namespace tritonstack::image
