// The orientation of a picture, from EXIF or else XMP, found as Pillow finds it.
#pragma once

#include "core/image.h"

namespace tritonstack::image {

// Orientation in the EXIF block `exif` (a TIFF header, with or without "Exif\0\0" before it) or else in the packet
// `xmp`; 1 where neither has one from 2 to 8, or where they are damaged. Either may be empty.
int orientation_of(Bytes exif, Bytes xmp);

}  // namespace tritonstack::image
