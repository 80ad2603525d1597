// Encoded pictures to 8-bit RGB, equal to Pillow's decoders and conversions bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/image.h"
#include "core/operation.h"

namespace tritonstack::image {

enum class Format { jpeg, png, webp };

// What the first bytes of a picture tell, read without decoding and without allocating by its size.
struct ImageHeader {
  Format format = Format::jpeg;
  Size stored;          // as stored, before the orientation is applied
  int orientation = 1;  // EXIF 1 … 8; 1 where absent or where the model ignores it
  int components = 3;   // JPEG: 1 gray, 3, 4 CMYK
  bool progressive = false;

  // Height and width swapped for orientations 5 … 8.
  Size oriented() const;
};

// Reads the header and applies the limits and policies that need no pixels.
// Raises ImageError (empty, format, damaged, too_large, policy).
ImageHeader read_header(Bytes encoded, const Operation& operation);

// Owned pixels. They cover `region` of the stored picture and nothing else; `view` is relative to its corner.
struct DecodedImage {
  std::vector<uint8_t> storage;
  Size size;

  PixelView view() const { return {storage.data(), size, static_cast<size_t>(size.width) * kChannels}; }
};

// The region (in oriented coordinates) of the picture, upright. The whole stream is read, so a truncated picture fails
// wherever the region lies. `scratch` is reused between calls. Raises ImageError.
void decode(Bytes encoded, const ImageHeader& header, Rect region, DecodedImage& out, std::vector<uint8_t>& scratch);

}  // namespace tritonstack::image
