#include <cmath>
#include <cstring>
#include <limits>

#include "catch.h"
#include "core/normalise.h"

using namespace tritonstack::image;

namespace {

float from_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("halves are the nearest ones, ties to even") {
  for (uint32_t half = 0; half < 0x7C00; ++half) {
    const float exact = half_to_float(static_cast<uint16_t>(half));
    REQUIRE(to_half(exact) == half);
    REQUIRE(to_half(-exact) == (half | 0x8000U));
    if (half + 1 == 0x7C00) continue;
    const float next = half_to_float(static_cast<uint16_t>(half + 1));
    const float middle = (exact + next) / 2;  // exact in float
    REQUIRE(to_half(middle) == (half % 2 == 0 ? half : half + 1));
    REQUIRE(to_half(std::nextafter(middle, 0.0F)) == half);
    REQUIRE(to_half(std::nextafter(middle, next)) == half + 1);
  }
  REQUIRE(to_half(65519.996F) == 0x7BFF);
  REQUIRE(to_half(65520.0F) == 0x7C00);
  REQUIRE(to_half(-std::numeric_limits<float>::infinity()) == 0xFC00);
  REQUIRE((to_half(std::nanf("")) & 0x7C00) == 0x7C00);
  REQUIRE((to_half(std::nanf("")) & 0x3FF) != 0);
}

TEST_CASE("brain floats are the nearest ones, ties to even") {
  REQUIRE(to_bfloat16(1.0F) == 0x3F80);
  REQUIRE(to_bfloat16(from_bits(0x3F808000)) == 0x3F80);
  REQUIRE(to_bfloat16(from_bits(0x3F818000)) == 0x3F82);
  REQUIRE(to_bfloat16(from_bits(0x3F808001)) == 0x3F81);
  REQUIRE(to_bfloat16(std::numeric_limits<float>::max()) == 0x7F80);
  REQUIRE((to_bfloat16(std::nanf("")) & 0x7F) != 0);
}

TEST_CASE("layout, channel order and pad") {
  Operation operation = parse_operation({{"resize", "letterbox"},
                                         {"height", "2"},
                                         {"width", "4"},
                                         {"pad_value", "100"},
                                         {"channel_order", "BGR"},
                                         {"scale", "0.5"},
                                         {"mean", "1,2,3"},
                                         {"std", "2,4,8"}},
                                        ElementType::f32);
  const Geometry geometry = plan_geometry(operation, {2, 2});
  const uint8_t pixels[] = {10, 20, 30, 11, 21, 31, 12, 22, 32, 13, 23, 33};
  float planes[24];
  Normaliser(operation).write(geometry, pixels, 6, planes);
  // Blue comes first and takes the first mean.
  REQUIRE(planes[0] == (100 * 0.5F - 1) / 2);
  REQUIRE(planes[1] == (30 * 0.5F - 1) / 2);
  REQUIRE(planes[8 + 2] == (21 * 0.5F - 2) / 4);
  REQUIRE(planes[16 + 5] == (12 * 0.5F - 3) / 8);
  REQUIRE(planes[16 + 7] == (100 * 0.5F - 3) / 8);
  operation.layout = Layout::nhwc;
  float packed[24];
  Normaliser(operation).write(geometry, pixels, 6, packed);
  for (size_t i = 0; i < 8; ++i) {
    for (size_t c = 0; c < 3; ++c) REQUIRE(packed[i * 3 + c] == planes[c * 8 + i]);
  }
}
