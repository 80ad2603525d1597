// Which JPEGs nvJPEG reads as libjpeg does. Everything doubtful is left to libjpeg.
#include <algorithm>
#include <cstring>
#include <initializer_list>

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

bool is_one_of(const uint8_t* sampling, std::initializer_list<uint8_t> luma) {
  return std::find(luma.begin(), luma.end(), sampling[0]) != luma.end() && sampling[3] == 0x11 && sampling[6] == 0x11;
}

// Kind by the frame header's body, length checked.
JpegKind kind_of_frame(uint8_t marker, const uint8_t* body) {
  const uint8_t components = body[5];
  // Lossless, hierarchical and arithmetic ones, and other depths than 8 bits.
  if (marker > 0xC2 || body[0] != 8 || (components != 1 && components != 3)) return JpegKind::libjpeg;
  // libjpeg takes these component names for RGB.
  if (components == 3 && body[6] == 'R' && body[9] == 'G' && body[12] == 'B') return JpegKind::libjpeg;
  // 4:4:4, 4:2:2, 4:2:0 and 4:4:0.
  const bool known = components == 1 || is_one_of(body + 7, {0x11, 0x21, 0x22, 0x12});
  return marker == 0xC0 && known ? JpegKind::hardware : JpegKind::hybrid;
}

}  // namespace

JpegKind kind_of_jpeg(Bytes encoded, const ImageHeader& header) {
  if (header.format != Format::jpeg || !has_end(encoded)) return JpegKind::libjpeg;
  const uint8_t* data = encoded.data;
  if (encoded.size < 4 || data[0] != 0xFF || data[1] != kStartOfImage) return JpegKind::libjpeg;
  JpegKind kind = JpegKind::libjpeg;
  int components = 0;
  size_t at = 2;
  while (at + 4 <= encoded.size) {
    if (data[at] != 0xFF) return JpegKind::libjpeg;
    const uint8_t marker = data[at + 1];
    if (marker == 0xFF) {
      ++at;
      continue;
    }
    const size_t length = static_cast<size_t>(data[at + 2]) << 8 | data[at + 3];
    if (length < 3 || at + 2 + length > encoded.size) return JpegKind::libjpeg;
    const uint8_t* body = data + at + 4;
    if (marker == kStartOfScan) {
      const bool whole = body[0] == components;
      return kind == JpegKind::hardware && !whole ? JpegKind::hybrid : kind;
    }
    // RGB without a colour transform.
    if (marker == kAdobe && length >= 14 && std::memcmp(body, "Adobe", 5) == 0 && body[11] == 0 &&
        header.components == 3) {
      return JpegKind::libjpeg;
    }
    if (is_frame(marker)) {
      if (length < 8 || length < 8 + 3 * size_t{body[5]}) return JpegKind::libjpeg;
      kind = kind_of_frame(marker, body);
      components = body[5];
    }
    at += 2 + length;
  }
  return JpegKind::libjpeg;
}

}  // namespace tritonstack::image
