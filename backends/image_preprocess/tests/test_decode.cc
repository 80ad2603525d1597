// Decoding a region gives the pixels of the whole, for every sampling and orientation; damaged pictures are refused.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "catch.h"
#include "core/decode.h"
#include "core/error.h"

using namespace tritonstack::image;

namespace {

struct Sampling {
  int horizontal;
  int vertical;
};

std::vector<uint8_t> make_jpeg(Size size, Sampling sampling, bool progressive, int components, int restart_rows) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &buffer, &bytes);
  info.image_height = static_cast<JDIMENSION>(size.height);
  info.image_width = static_cast<JDIMENSION>(size.width);
  info.input_components = components;
  info.in_color_space = components == 1 ? JCS_GRAYSCALE : components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 88, TRUE);
  if (components == 3) {
    info.comp_info[0].h_samp_factor = sampling.horizontal;
    info.comp_info[0].v_samp_factor = sampling.vertical;
  }
  if (progressive) jpeg_simple_progression(&info);
  info.restart_in_rows = restart_rows;
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> row(static_cast<size_t>(size.width * components));
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      for (int c = 0; c < components; ++c) {
        row[static_cast<size_t>(x * components + c)] =
            static_cast<uint8_t>((x * (3 + c) + y * (5 - c) + (x / 7 + y / 5) % 2 * 90) & 255);
      }
    }
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::vector<uint8_t> result(buffer, buffer + bytes);
  std::free(buffer);
  return result;
}

void check_regions(const std::vector<uint8_t>& encoded, ImageHeader header) {
  const Bytes bytes{encoded.data(), encoded.size()};
  const Size size = header.oriented();
  DecodedImage whole;
  DecodedImage part;
  std::vector<uint8_t> scratch;
  decode(bytes, header, {0, 0, size.height, size.width}, whole, scratch);
  for (int top = 0; top < size.height; top += size.height / 4 + 1) {
    for (int left = 0; left < size.width; left += size.width / 4 + 1) {
      for (const int share : {1, 3}) {
        const Rect region{top, left, (size.height - top + share - 1) / share, (size.width - left + share - 1) / share};
        decode(bytes, header, region, part, scratch);
        for (int y = 0; y < region.height; ++y) {
          const size_t row_bytes = static_cast<size_t>(region.width) * 3;
          REQUIRE(std::memcmp(part.view().row(y), whole.view().at(top + y, left), row_bytes) == 0);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("regions of JPEGs are those of the whole") {
  const Operation operation;
  for (const Size size : {Size{1, 1}, Size{37, 251}, Size{290, 83}, Size{203, 331}}) {
    for (const Sampling sampling : {Sampling{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {4, 2}}) {
      for (const bool progressive : {false, true}) {
        const auto encoded = make_jpeg(size, sampling, progressive, 3, progressive ? 0 : 1);
        const ImageHeader header = read_header({encoded.data(), encoded.size()}, operation);
        REQUIRE(header.stored == size);
        REQUIRE(header.progressive == progressive);
        CAPTURE(to_string(size), sampling.horizontal, sampling.vertical, progressive);
        check_regions(encoded, header);
      }
    }
  }
  for (const int components : {1, 4}) {
    const auto encoded = make_jpeg({190, 215}, {1, 1}, false, components, 0);
    const ImageHeader header = read_header({encoded.data(), encoded.size()}, operation);
    REQUIRE(header.components == components);
    check_regions(encoded, header);
  }
}

TEST_CASE("regions of turned pictures are those of the whole") {
  const auto encoded = make_jpeg({150, 211}, {2, 2}, false, 3, 0);
  ImageHeader header = read_header({encoded.data(), encoded.size()}, Operation{});
  for (int orientation = 1; orientation <= 8; ++orientation) {
    header.orientation = orientation;
    CAPTURE(orientation);
    REQUIRE(header.oriented() == (orientation >= 5 ? Size{211, 150} : Size{150, 211}));
    check_regions(encoded, header);
  }
}

TEST_CASE("a JPEG cut off anywhere is refused") {
  const auto encoded = make_jpeg({40, 56}, {2, 2}, false, 3, 0);
  DecodedImage out;
  std::vector<uint8_t> scratch;
  for (size_t size = 0; size < encoded.size(); size += 3) {
    const std::vector<uint8_t> part(encoded.begin(), encoded.begin() + static_cast<ptrdiff_t>(size));
    CAPTURE(size);
    const auto read = [&] {
      const Bytes bytes{part.data(), part.size()};
      const ImageHeader header = read_header(bytes, Operation{});
      decode(bytes, header, {0, 0, 40, 56}, out, scratch);
    };
    REQUIRE_THROWS_AS(read(), ImageError);
    // Also where only the first rows are wanted.
    const auto read_top = [&] {
      const Bytes bytes{part.data(), part.size()};
      decode(bytes, read_header(bytes, Operation{}), {0, 0, 2, 2}, out, scratch);
    };
    REQUIRE_THROWS_AS(read_top(), ImageError);
  }
}
