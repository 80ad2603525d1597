// Which JPEGs nvJPEG reads as libjpeg does. Everything doubtful is left to libjpeg.
#include <cstring>

#include "gpu/jpeg_decoder.h"

namespace tritonstack::image {

namespace {

constexpr uint8_t kStartOfImage = 0xD8;
constexpr uint8_t kEndOfImage = 0xD9;
constexpr uint8_t kStartOfScan = 0xDA;
constexpr uint8_t kAdobe = 0xEE;

bool is_frame(uint8_t marker) {
  // C4, C8 and CC are tables and an extension in the same range.
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

// The stream's last bytes hold an end marker, with at most a little padding behind it. Without one it is cut off, which
// nvJPEG does not report and libjpeg does.
bool has_end(Bytes bytes) {
  constexpr size_t kPadding = 64;
  const size_t least = bytes.size > kPadding ? bytes.size - kPadding : 0;
  for (size_t i = bytes.size; i > least + 1; --i) {
    if (bytes.data[i - 2] == 0xFF && bytes.data[i - 1] == kEndOfImage) return true;
  }
  return false;
}

}  // namespace

bool is_for_nvjpeg(Bytes encoded, const ImageHeader& header) {
  if (header.format != Format::jpeg || (header.components != 1 && header.components != 3) || !has_end(encoded)) {
    return false;
  }
  const uint8_t* data = encoded.data;
  if (encoded.size < 4 || data[0] != 0xFF || data[1] != kStartOfImage) return false;
  size_t at = 2;
  bool frame = false;
  while (at + 4 <= encoded.size) {
    if (data[at] != 0xFF) return false;
    const uint8_t marker = data[at + 1];
    if (marker == 0xFF) {
      ++at;
      continue;
    }
    const size_t length = static_cast<size_t>(data[at + 2]) << 8 | data[at + 3];
    if (length < 2 || at + 2 + length > encoded.size) return false;
    const uint8_t* body = data + at + 4;
    if (marker == kStartOfScan) return frame;
    if (marker == kAdobe && length >= 14 && std::memcmp(body, "Adobe", 5) == 0 && header.components == 3 &&
        body[11] == 0) {
      return false;  // RGB without a colour transform
    }
    if (is_frame(marker)) {
      // Baseline, extended and progressive Huffman; not lossless, hierarchical or arithmetic.
      if (marker > 0xC2 || length < 8 || body[0] != 8) return false;
      frame = true;
      const size_t components = body[5];
      if (length < 8 + 3 * components) return false;
      // libjpeg takes these component names for RGB.
      if (components == 3 && body[6] == 'R' && body[9] == 'G' && body[12] == 'B') return false;
    }
    at += 2 + length;
  }
  return false;
}

}  // namespace tritonstack::image
