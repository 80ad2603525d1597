#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "core/exif.h"

using namespace tritonstack::image;

namespace {

Bytes bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string little(uint32_t value, int width) {
  std::string text;
  for (int i = 0; i < width; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string big(uint32_t value, int width) {
  const std::string text = little(value, width);
  return std::string(text.rbegin(), text.rend());
}

std::string block(bool is_little, uint32_t type, uint32_t count, const std::string& value) {
  const auto number = is_little ? little : big;
  return std::string("Exif\0\0", 6) + (is_little ? "II" : "MM") + number(42, 2) + number(8, 4) + number(1, 2) +
         number(0x0112, 2) + number(type, 2) + number(count, 4) + value;
}

}  // namespace

TEST_CASE("the orientation is found in both byte orders and all whole types") {
  for (uint32_t value = 0; value < 12; ++value) {
    const int expected = value >= 2 && value <= 8 ? static_cast<int>(value) : 1;
    REQUIRE(orientation_of(bytes(block(true, 3, 1, little(value, 2) + little(0, 2))), {}) == expected);
    REQUIRE(orientation_of(bytes(block(false, 3, 1, big(value, 2) + big(0, 2))), {}) == expected);
    REQUIRE(orientation_of(bytes(block(false, 4, 1, big(value, 4))), {}) == expected);
    REQUIRE(orientation_of(bytes(block(true, 1, 1, little(value, 4))), {}) == 1);
  }
  const std::string far = block(true, 4, 2, little(26, 4)) + little(0, 4) + little(6, 4) + little(3, 4);
  REQUIRE(orientation_of(bytes(far), {}) == 6);
}

TEST_CASE("XMP counts where EXIF is silent") {
  REQUIRE(orientation_of({}, bytes("<a tiff:Orientation=\"8\"/>")) == 8);
  REQUIRE(orientation_of({}, bytes("<tiff:Orientation>3</tiff:Orientation>")) == 3);
  REQUIRE(orientation_of({}, bytes("tiff:Orientation tiff:Orientation=\"")) == 1);
  REQUIRE(orientation_of(bytes(block(true, 3, 1, little(1, 4))), bytes("tiff:Orientation=\"8\"")) == 1);
}

TEST_CASE("nothing is read beyond a damaged block") {
  const std::string whole = block(true, 4, 2, little(26, 4)) + little(0, 4) + little(6, 4) + little(3, 4);
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<uint8_t> part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    REQUIRE(orientation_of({part.data(), part.size()}, {}) >= 1);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> noise(whole.begin(), whole.end());
    for (int k = 0; k < 4; ++k) noise[random() % noise.size()] = static_cast<uint8_t>(random());
    REQUIRE(orientation_of({noise.data(), noise.size()}, {noise.data(), noise.size()}) >= 1);
  }
}
