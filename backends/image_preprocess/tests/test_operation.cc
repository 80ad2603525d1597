#include <string>

#include "catch.h"
#include "core/error.h"
#include "core/operation.h"

using namespace tritonstack::image;

namespace {

std::string refusal(const Settings& settings, ElementType element = ElementType::f32) {
  try {
    parse_operation(settings, element);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("defaults") {
  const Operation operation = parse_operation({}, ElementType::f16);
  REQUIRE(operation.resize == ResizeMode::none);
  REQUIRE(operation.antialias);
  REQUIRE(operation.round_u8);
  REQUIRE_FALSE(operation.decode_threads);
  REQUIRE(operation.max_pixels == 100'000'000);
  REQUIRE(operation.max_bytes == 67'108'864);
  REQUIRE_FALSE(fixed_output_size(operation));
  REQUIRE(sample_bytes(operation, {2, 3}) == 36);
}

TEST_CASE("every value is read") {
  const Operation operation = parse_operation({{"resize", "letterbox"},
                                               {"height", " 32 "},
                                               {"width", "48"},
                                               {"center_crop", "16x20"},
                                               {"interpolation", "bicubic"},
                                               {"antialias", "false"},
                                               {"round_u8", "false"},
                                               {"scale", "0.00392156862745098"},
                                               {"mean", "0.485, 0.456, 0.406"},
                                               {"std", "1e-1,2,3"},
                                               {"threads", "0"},
                                               {"decode_threads", "3"},
                                               {"on_gpu_output_unavailable", "fail"}},
                                              ElementType::f32);
  REQUIRE(operation.target == Size{32, 48});
  REQUIRE(*fixed_output_size(operation) == Size{16, 20});
  REQUIRE(operation.scale == 1 / 255.0F);
  REQUIRE(operation.mean[1] == 0.456F);
  REQUIRE(operation.std[0] == 0.1F);
  REQUIRE(operation.threads == 0);
  REQUIRE(operation.decode_threads == 3);
  REQUIRE(operation.fail_without_gpu_output);
}

TEST_CASE("bad values are named") {
  REQUIRE(refusal({{"height", "-1"}}).find("'height'") != std::string::npos);
  for (const char* bad : {"", "1.5", "abc", "99999999999999999999", "0x10", "+5"}) {
    REQUIRE(refusal({{"resize", "exact"}, {"width", "5"}, {"height", bad}}).find("'height'") != std::string::npos);
  }
  for (const char* bad : {"", "1", "1,2", "1,2,3,4", "1,2,x", "1;2;3", "nan,1,1", "1e40,1,1"}) {
    REQUIRE(refusal({{"mean", bad}}).find("'mean'") != std::string::npos);
  }
  for (const char* bad : {"0", "-0.5", "1.01", "nan", "half"}) {
    REQUIRE(refusal({{"crop_fraction", bad}}).find("'crop_fraction'") != std::string::npos);
  }
  for (const char* bad : {"224", "224x", "x224", "0x5", "224X224", "1x2x3"}) {
    REQUIRE(refusal({{"center_crop", bad}}).find("'center_crop'") != std::string::npos);
  }
  REQUIRE(refusal({{"scale", "2"}}, ElementType::u8).find("TYPE_UINT8") != std::string::npos);
  REQUIRE(refusal({{"scale", "300"}}, ElementType::f16).find("TYPE_FP16") != std::string::npos);
  REQUIRE(refusal({{"scale", "300"}}, ElementType::bf16).empty());
  REQUIRE(refusal({{"scale", "0"}}).find("'scale'") != std::string::npos);
}
