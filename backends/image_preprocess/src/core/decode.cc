#include "core/decode.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/codecs.h"
#include "core/error.h"

namespace tritonstack::image {
namespace {

bool starts_with(Bytes bytes, std::string_view prefix, size_t offset = 0) {
  return bytes.size >= offset + prefix.size() && std::memcmp(bytes.data + offset, prefix.data(), prefix.size()) == 0;
}

Format format_of(Bytes encoded) {
  using namespace std::string_view_literals;
  if (starts_with(encoded, "\xFF\xD8\xFF"sv)) return Format::jpeg;
  if (starts_with(encoded, "\x89PNG\r\n\x1A\n"sv)) return Format::png;
  if (starts_with(encoded, "RIFF"sv) && starts_with(encoded, "WEBP"sv, 8)) return Format::webp;
  std::string given = std::to_string(encoded.size) + " bytes that start with";
  if (starts_with(encoded, "GIF8"sv)) {
    given = "a GIF";
  } else if (starts_with(encoded, "BM"sv)) {
    given = "a BMP";
  } else if (starts_with(encoded, "II*\0"sv) || starts_with(encoded, "MM\0*"sv)) {
    given = "a TIFF";
  } else {
    const char* const digits = "0123456789abcdef";
    for (size_t i = 0; i < std::min<size_t>(encoded.size, 8); ++i) {
      given += std::string(" ") + digits[encoded.data[i] >> 4] + digits[encoded.data[i] & 15];
    }
  }
  throw ImageError(FailureKind::format,
                   "not a picture that can be read; given " + given + "; expected JPEG, PNG or WebP");
}

// Where the oriented pixel (y, x) lies in a stored picture of this size: at offset + y · down + x · across.
struct Walk {
  ptrdiff_t offset;
  ptrdiff_t down;
  ptrdiff_t across;
};

Walk walk_of(int orientation, Size stored) {
  const ptrdiff_t pixel = kChannels;
  const ptrdiff_t row = static_cast<ptrdiff_t>(stored.width) * pixel;
  const ptrdiff_t last_row = (stored.height - 1) * row;
  const ptrdiff_t last_column = (stored.width - 1) * pixel;
  switch (orientation) {
    case 2:
      return {last_column, row, -pixel};
    case 3:
      return {last_row + last_column, -row, -pixel};
    case 4:
      return {last_row, -row, pixel};
    case 5:
      return {0, pixel, row};
    case 6:
      return {last_row, pixel, -row};
    case 7:
      return {last_row + last_column, -pixel, -row};
    case 8:
      return {last_column, -pixel, row};
    default:
      return {0, row, pixel};
  }
}

// The region of the stored picture that a region of the oriented one comes from.
Rect stored_region(int orientation, Size stored, Rect r) {
  const int bottom = stored.height - (orientation >= 5 ? r.left + r.width : r.top + r.height);
  const int right = stored.width - (orientation >= 5 ? r.top + r.height : r.left + r.width);
  switch (orientation) {
    case 2:
      return {r.top, right, r.height, r.width};
    case 3:
      return {bottom, right, r.height, r.width};
    case 4:
      return {bottom, r.left, r.height, r.width};
    case 5:
      return {r.left, r.top, r.width, r.height};
    case 6:
      return {bottom, r.top, r.width, r.height};
    case 7:
      return {bottom, right, r.width, r.height};
    case 8:
      return {r.left, right, r.width, r.height};
    default:
      return r;
  }
}

void orient(const uint8_t* stored, Size stored_size, int orientation, Size oriented, uint8_t* out) {
  const Walk walk = walk_of(orientation, stored_size);
  // Blocks keep the columns that a turned picture reads in the cache.
  constexpr int kBlock = 32;
  for (int top = 0; top < oriented.height; top += kBlock) {
    for (int left = 0; left < oriented.width; left += kBlock) {
      const int bottom = std::min(top + kBlock, oriented.height);
      const int right = std::min(left + kBlock, oriented.width);
      for (int y = top; y < bottom; ++y) {
        uint8_t* to = out + (static_cast<ptrdiff_t>(y) * oriented.width + left) * kChannels;
        const uint8_t* from = stored + walk.offset + y * walk.down + left * walk.across;
        for (int x = left; x < right; ++x) {
          std::memcpy(to, from, kChannels);
          to += kChannels;
          from += walk.across;
        }
      }
    }
  }
}

void decode_stored(Bytes encoded, const ImageHeader& header, Rect region, uint8_t* rgb) {
  switch (header.format) {
    case Format::jpeg:
      return decode_jpeg(encoded, header, region, rgb);
    case Format::png:
      return decode_png(encoded, header, region, rgb);
    case Format::webp:
      return decode_webp(encoded, header, region, rgb);
  }
}

void check_policies(const ImageHeader& header, bool has_alpha, const Operation& operation) {
  if (header.components == 1 && operation.gray == GrayPolicy::refuse) {
    throw ImageError(FailureKind::policy, "gray, which this model refuses (parameter gray); expected colour");
  }
  if (header.components == 4 && operation.cmyk == CmykPolicy::refuse) {
    throw ImageError(FailureKind::policy, "CMYK, which this model refuses (parameter cmyk); expected RGB");
  }
  if (has_alpha && operation.alpha == AlphaPolicy::refuse) {
    throw ImageError(FailureKind::policy,
                     "a picture with alpha, which this model refuses (parameter alpha); expected one without");
  }
}

}  // namespace

Size ImageHeader::oriented() const {
  return orientation >= 5 ? Size{stored.width, stored.height} : stored;
}

ImageHeader read_header(Bytes encoded, const Operation& operation) {
  if (encoded.size == 0) throw ImageError(FailureKind::empty, "empty; expected an encoded picture");
  if (static_cast<int64_t>(encoded.size) > operation.max_bytes) {
    throw ImageError(FailureKind::too_large, "too large; given " + std::to_string(encoded.size) +
                                                 " bytes; expected at most " + std::to_string(operation.max_bytes) +
                                                 " (parameter max_bytes)");
  }
  const Format format = format_of(encoded);
  bool has_alpha = false;
  ImageHeader header = format == Format::jpeg  ? read_jpeg_header(encoded, operation.exif)
                       : format == Format::png ? read_png_header(encoded, operation.exif, has_alpha)
                                               : read_webp_header(encoded, operation.exif, has_alpha);
  header.format = format;
  if (pixels(header.stored) > operation.max_pixels) {
    throw ImageError(FailureKind::too_large, "too large; given " + to_string(header.stored) +
                                                 " pixels (height × width); expected at most " +
                                                 std::to_string(operation.max_pixels) + " (parameter max_pixels)");
  }
  check_policies(header, has_alpha, operation);
  return header;
}

void decode(Bytes encoded, const ImageHeader& header, Rect region, DecodedImage& out, std::vector<uint8_t>& scratch) {
  const auto bytes = static_cast<size_t>(region.height) * static_cast<size_t>(region.width) * kChannels;
  out.size = {region.height, region.width};
  if (out.storage.size() < bytes) out.storage.resize(bytes);
  if (header.orientation == 1) {
    decode_stored(encoded, header, region, out.storage.data());
    return;
  }
  const Rect stored = stored_region(header.orientation, header.stored, region);
  if (scratch.size() < bytes) scratch.resize(bytes);
  decode_stored(encoded, header, stored, scratch.data());
  orient(scratch.data(), {stored.height, stored.width}, header.orientation, out.size, out.storage.data());
}

}  // namespace tritonstack::image
