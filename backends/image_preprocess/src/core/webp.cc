// WebP through libwebp. Of an animation the first frame counts, on its canvas, as in Pillow.
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <webp/decode.h>
#include <webp/demux.h>

#include "core/codecs.h"
#include "core/error.h"
#include "core/exif.h"

namespace tritonstack::image {
namespace {

constexpr size_t kRiffHeader = 12;
constexpr size_t kChunkHeader = 8;

uint32_t read_u32(const uint8_t* at) {
  return uint32_t{at[0]} | (uint32_t{at[1]} << 8) | (uint32_t{at[2]} << 16) | (uint32_t{at[3]} << 24);
}

int find_orientation(Bytes encoded) {
  Bytes exif;
  Bytes xmp;
  size_t at = kRiffHeader;
  while (at < encoded.size && encoded.size - at >= kChunkHeader) {
    const uint8_t* chunk = encoded.data + at;
    const size_t length = read_u32(chunk + 4);
    if (length > encoded.size - at - kChunkHeader) break;
    const Bytes content{chunk + kChunkHeader, length};
    if (std::memcmp(chunk, "EXIF", 4) == 0 && exif.data == nullptr) exif = content;
    if (std::memcmp(chunk, "XMP ", 4) == 0 && xmp.data == nullptr) xmp = content;
    at += kChunkHeader + length + (length & 1);
  }
  return orientation_of(exif, xmp);
}

[[noreturn]] void damaged(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      throw ImageError(FailureKind::damaged, "cut off before its end");
    case VP8_STATUS_OUT_OF_MEMORY:
      throw ImageError(FailureKind::internal, "out of memory while decoding WebP");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      throw ImageError(FailureKind::damaged, "damaged: a WebP with a feature that is not known");
    default:
      throw ImageError(FailureKind::damaged, "damaged: not a valid WebP stream");
  }
}

WebPBitstreamFeatures features_of(Bytes encoded) {
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(encoded.data, encoded.size, &features);
  if (status != VP8_STATUS_OK) damaged(status);
  return features;
}

void copy_region(const uint8_t* from, size_t row_bytes, size_t pixel_bytes, Rect region, uint8_t* rgb) {
  for (int y = 0; y < region.height; ++y) {
    const uint8_t* pixel =
        from + static_cast<size_t>(region.top + y) * row_bytes + static_cast<size_t>(region.left) * pixel_bytes;
    for (int x = 0; x < region.width; ++x) {
      std::memcpy(rgb, pixel, kChannels);
      rgb += kChannels;
      pixel += pixel_bytes;
    }
  }
}

void decode_still(Bytes encoded, Size stored, Rect region, uint8_t* rgb) {
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) damaged(VP8_STATUS_INVALID_PARAM);
  const size_t row_bytes = static_cast<size_t>(stored.width) * kChannels;
  if (row_bytes > static_cast<size_t>(std::numeric_limits<int>::max())) damaged(VP8_STATUS_INVALID_PARAM);
  const bool whole = region.height == stored.height && region.width == stored.width;
  std::vector<uint8_t> picture(whole ? 0 : row_bytes * static_cast<size_t>(stored.height));
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = whole ? rgb : picture.data();
  config.output.u.RGBA.stride = static_cast<int>(row_bytes);
  config.output.u.RGBA.size = row_bytes * static_cast<size_t>(stored.height);
  const VP8StatusCode status = WebPDecode(encoded.data, encoded.size, &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) damaged(status);
  if (!whole) copy_region(picture.data(), row_bytes, kChannels, region, rgb);
}

void decode_first_frame(Bytes encoded, Size stored, Rect region, uint8_t* rgb) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) damaged(VP8_STATUS_INVALID_PARAM);
  options.color_mode = MODE_RGBA;
  const WebPData data{encoded.data, encoded.size};
  const std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)> decoder(WebPAnimDecoderNew(&data, &options),
                                                                                   WebPAnimDecoderDelete);
  uint8_t* canvas = nullptr;
  int timestamp_ms = 0;
  WebPAnimInfo info;
  if (!decoder || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
      info.canvas_height != static_cast<uint32_t>(stored.height) ||
      info.canvas_width != static_cast<uint32_t>(stored.width) ||
      WebPAnimDecoderGetNext(decoder.get(), &canvas, &timestamp_ms) == 0) {
    damaged(VP8_STATUS_BITSTREAM_ERROR);
  }
  copy_region(canvas, static_cast<size_t>(stored.width) * 4, 4, region, rgb);
}

}  // namespace

ImageHeader read_webp_header(Bytes encoded, bool exif, bool& has_alpha) {
  const WebPBitstreamFeatures features = features_of(encoded);
  ImageHeader header;
  header.stored = {features.height, features.width};
  has_alpha = features.has_alpha != 0;
  if (exif) header.orientation = find_orientation(encoded);
  return header;
}

void decode_webp(Bytes encoded, const ImageHeader& header, Rect region, uint8_t* rgb) {
  if (features_of(encoded).has_animation != 0) {
    decode_first_frame(encoded, header.stored, region, rgb);
  } else {
    decode_still(encoded, header.stored, region, rgb);
  }
}

}  // namespace tritonstack::image
