// One reader per format, behind decode.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/decode.h"
#include "core/image.h"
#include "core/operation.h"

namespace tritonstack::image {

// Headers: fill everything but the format; the orientation only where `exif` asks for it. Raise ImageError.
ImageHeader read_jpeg_header(Bytes encoded, bool exif);
ImageHeader read_png_header(Bytes encoded, bool exif, bool& has_alpha);
ImageHeader read_webp_header(Bytes encoded, bool exif, bool& has_alpha);

// Pixels of `region` of the stored picture into `rgb`, which has room for region.height × region.width × 3 bytes.
// Raise ImageError.
void decode_jpeg(Bytes encoded, const ImageHeader& header, Rect region, uint8_t* rgb);
void decode_png(Bytes encoded, const ImageHeader& header, Rect region, uint8_t* rgb);
void decode_webp(Bytes encoded, const ImageHeader& header, Rect region, uint8_t* rgb);

}  // namespace tritonstack::image
