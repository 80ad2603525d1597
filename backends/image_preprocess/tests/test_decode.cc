// Decoding a region gives the pixels of the whole, for every sampling and orientation; damaged pictures are refused.
#include <zlib.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "catch.h"
#include "core/decode.h"
#include "core/error.h"
#include "jpeg_writer.h"

using namespace tritonstack::image;

namespace {

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
        const auto encoded = make_jpeg({size, sampling, 3, progressive, false, progressive ? 0 : 1});
        const ImageHeader header = read_header({encoded.data(), encoded.size()}, operation);
        REQUIRE(header.stored == size);
        REQUIRE(header.progressive == progressive);
        CAPTURE(to_string(size), sampling.horizontal, sampling.vertical, progressive);
        check_regions(encoded, header);
      }
    }
  }
  for (const int components : {1, 4}) {
    const auto encoded = make_jpeg({{190, 215}, {1, 1}, components});
    const ImageHeader header = read_header({encoded.data(), encoded.size()}, operation);
    REQUIRE(header.components == components);
    check_regions(encoded, header);
  }
}

TEST_CASE("regions of turned pictures are those of the whole") {
  const auto encoded = make_jpeg({{150, 211}, {2, 2}});
  ImageHeader header = read_header({encoded.data(), encoded.size()}, Operation{});
  for (int orientation = 1; orientation <= 8; ++orientation) {
    header.orientation = orientation;
    CAPTURE(orientation);
    REQUIRE(header.oriented() == (orientation >= 5 ? Size{211, 150} : Size{150, 211}));
    check_regions(encoded, header);
  }
}

TEST_CASE("a JPEG cut off anywhere is refused") {
  const auto encoded = make_jpeg({{40, 56}, {2, 2}});
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

namespace {

// Address space that this process ever had, in KiB; 0 where the system does not tell.
long peak_address_space() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmPeak:", 0) == 0) return std::stol(line.substr(7));
  }
  return 0;
}

void append_number(std::vector<uint8_t>& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(value >> shift));
}

// A PNG of 15 × 12 pixels and the start of a chunk that claims to hold 1.9 GB.
std::vector<uint8_t> png_with_large_claim(const std::string& name) {
  std::vector<uint8_t> png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  const std::vector<uint8_t> header{'I', 'H', 'D', 'R', 0, 0, 0, 15, 0, 0, 0, 12, 8, 2, 0, 0, 0};
  append_number(png, 13);
  png.insert(png.end(), header.begin(), header.end());
  append_number(png, static_cast<uint32_t>(crc32(0, header.data(), static_cast<uInt>(header.size()))));
  append_number(png, 1'900'000'000);
  png.insert(png.end(), name.begin(), name.end());
  for (int i = 0; i < 300; ++i) png.push_back(static_cast<uint8_t>(i < 2 ? 'M' : i));
  return png;
}

}  // namespace

TEST_CASE("no chunk of a PNG takes the memory that it claims to need") {
  DecodedImage out;
  std::vector<uint8_t> scratch;
  for (const char* name : {"eXIf", "iCCP", "iTXt", "tEXt", "zTXt", "sPLT", "pCAL", "sCAL", "hIST", "bKGD", "abCd"}) {
    const auto png = png_with_large_claim(name);
    const long before = peak_address_space();
    CAPTURE(name);
    const auto read = [&] {
      const Bytes bytes{png.data(), png.size()};
      const ImageHeader header = read_header(bytes, Operation{});
      decode(bytes, header, {0, 0, 12, 15}, out, scratch);
    };
    REQUIRE_THROWS_AS(read(), ImageError);
    REQUIRE(peak_address_space() - before < 256 * 1024);
  }
}
