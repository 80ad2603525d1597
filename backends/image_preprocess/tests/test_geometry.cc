
#include "catch.h"
#include "core/error.h"
#include "core/filter.h"
#include "core/geometry.h"

using namespace tritonstack::image;

namespace {

Operation with(const Settings& settings) {
  return parse_operation(settings, ElementType::f32);
}

}  // namespace

TEST_CASE("the longer side is rounded down, as by torchvision") {
  const Operation operation = with({{"resize", "shorter"}, {"height", "256"}});
  REQUIRE(plan_geometry(operation, {1080, 1920}).resized == Size{256, 455});
  REQUIRE(plan_geometry(operation, {1920, 1080}).resized == Size{455, 256});
  REQUIRE(plan_geometry(operation, {500, 375}).resized == Size{341, 256});
  REQUIRE(plan_geometry(operation, {256, 256}).resized == Size{256, 256});
  REQUIRE(plan_geometry(operation, {1, 3}).resized == Size{256, 768});
}

TEST_CASE("an odd margin of the centre crop is larger at the bottom and right") {
  for (const auto& [height, top] : {std::pair{224, 0}, {225, 0}, {226, 1}, {227, 1}, {229, 2}, {231, 3}}) {
    const Geometry geometry = plan_geometry(with({{"center_crop", "224x224"}}), {height, 300});
    REQUIRE(geometry.top == -top);
    REQUIRE(geometry.left == -38);
  }
}

TEST_CASE("a letterbox rounds half to even and is centred") {
  const Operation operation = with({{"resize", "letterbox"}, {"height", "64"}, {"width", "64"}});
  const Geometry wide = plan_geometry(operation, {5, 128});  // 2.5 rows become 2
  REQUIRE(wide.resized == Size{2, 64});
  REQUIRE(wide.top == 31);
  const Geometry thin = plan_geometry(operation, {1000, 1});
  REQUIRE(thin.resized == Size{64, 1});
  REQUIRE(thin.left == 31);
  const Rect covered = thin.covered();
  REQUIRE(covered.left == 31);
  REQUIRE(covered.width == 1);
}

TEST_CASE("the described scale and pad map source to output") {
  const Operation operation = with(
      {{"crop_fraction", "0.5"}, {"resize", "letterbox"}, {"height", "40"}, {"width", "60"}, {"center_crop", "30x50"}});
  const Geometry geometry = plan_geometry(operation, {100, 200});
  const auto described = describe(geometry);
  // Half of the shorter side, from (25, 75), becomes 40 × 40 at column 10 of 60, of which 5 rows and columns go.
  REQUIRE(described[0] == Approx(0.8));
  REQUIRE(described[2] == Approx(10 - 5 - 75 * 0.8));
  REQUIRE(described[3] == Approx(-5 - 25 * 0.8));
  REQUIRE(described[4] == 100);
  REQUIRE(described[5] == 200);
}

TEST_CASE("what does not fit is refused") {
  REQUIRE_THROWS_AS(plan_geometry(with({{"center_crop", "10x10"}}), {9, 100}), ImageError);
  REQUIRE_THROWS_AS(plan_geometry(with({{"resize", "shorter"}, {"height", "1000"}}), {1, 65500}), ImageError);
  REQUIRE_THROWS_AS(plan_geometry(with({}), {0, 5}), ImageError);
}

TEST_CASE("Pillow 13 turns the passes round where the height shrinks by more than twice the width's pixels") {
  REQUIRE_FALSE(vertical_first({375, 500}, {256, 341}));
  REQUIRE(vertical_first({240, 101}, {152, 64}));
  REQUIRE_FALSE(vertical_first({100, 80}, {80, 70}));
  REQUIRE(vertical_first({100, 80}, {79, 70}));
  REQUIRE(vertical_first({100, 30}, {99, 40}));
  REQUIRE_FALSE(vertical_first({50, 40}, {51, 90}));
}
