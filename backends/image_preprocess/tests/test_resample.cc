// Every mode against a straightforward one in double or 64-bit integers, over odd sizes and crops.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "core/filter.h"
#include "core/resample_cpu.h"

using namespace tritonstack::image;

namespace {

struct Plane {
  Size size;
  std::vector<double> values;  // [y][x][channel]

  double& at(int y, int x, int c) { return values[static_cast<size_t>((y * size.width + x) * 3 + c)]; }
  double at(int y, int x, int c) const { return values[static_cast<size_t>((y * size.width + x) * 3 + c)]; }
};

// Weights of one output by their definition, without windows.
std::vector<double> reference_weights(Interpolation interpolation, bool antialias, int in, int out, int i) {
  const double scale = static_cast<double>(in) / out;
  const double stretch = antialias ? std::max(scale, 1.0) : 1.0;
  const bool cubic = interpolation == Interpolation::bicubic;
  const double a = antialias ? -0.5 : -0.75;
  const auto kernel = [&](double x) {
    x = std::abs(x);
    if (!cubic) return std::max(0.0, 1 - x);
    if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
    if (x < 2) return a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a;
    return 0.0;
  };
  std::vector<double> weights(static_cast<size_t>(in), 0.0);
  double center = (i + 0.5) * scale - 0.5;
  if (!antialias && !cubic) center = std::max(center, 0.0);
  const int reach = static_cast<int>(std::ceil(2 * stretch)) + 2;
  const int base = static_cast<int>(std::floor(center));
  double sum = 0;
  for (int k = base - reach; k <= base + reach; ++k) {
    const double weight = kernel((k - center) / stretch);
    if (antialias && (k < 0 || k >= in)) continue;
    weights[static_cast<size_t>(std::clamp(k, 0, in - 1))] += weight;
    sum += weight;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

enum class Rounding { none, fixed_point };

Plane along_rows(const Plane& plane, Interpolation interpolation, bool antialias, int out, Rounding rounding) {
  Plane result{{plane.size.height, out}, std::vector<double>(static_cast<size_t>(plane.size.height * out * 3))};
  for (int i = 0; i < out; ++i) {
    const auto weights = reference_weights(interpolation, antialias, plane.size.width, out, i);
    for (int y = 0; y < plane.size.height; ++y) {
      for (int c = 0; c < 3; ++c) {
        double sum = 0;
        for (int x = 0; x < plane.size.width; ++x) sum += weights[static_cast<size_t>(x)] * plane.at(y, x, c);
        result.at(y, i, c) = rounding == Rounding::none ? sum : std::clamp(std::floor(sum + 0.5), 0.0, 255.0);
      }
    }
  }
  return result;
}

Plane turned(const Plane& plane) {
  Plane result{{plane.size.width, plane.size.height}, plane.values};
  for (int y = 0; y < plane.size.height; ++y) {
    for (int x = 0; x < plane.size.width; ++x) {
      for (int c = 0; c < 3; ++c) result.at(x, y, c) = plane.at(y, x, c);
    }
  }
  return result;
}

Plane reference(const Plane& plane, const Operation& operation, Size out) {
  const Rounding rounding = operation.round_u8 && operation.antialias ? Rounding::fixed_point : Rounding::none;
  const auto rows = [&](const Plane& p) {
    return along_rows(p, operation.interpolation, operation.antialias, out.width, rounding);
  };
  const auto columns = [&](const Plane& p) {
    return turned(along_rows(turned(p), operation.interpolation, operation.antialias, out.height, rounding));
  };
  Plane result = vertical_first(plane.size, out) ? rows(columns(plane)) : columns(rows(plane));
  for (double& value : result.values) {
    value = std::clamp(value, 0.0, 255.0);
    if (operation.round_u8) value = std::nearbyint(value);
  }
  return result;
}

std::vector<uint8_t> noise(Size size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(pixels(size)) * 3);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 4 == 0 ? (random() % 2) * 255 : random());
  return bytes;
}

// The largest difference, and how many values differ by more than `allowed`.
struct Difference {
  double largest = 0;
  size_t beyond = 0;
};

Difference compare(const Settings& extra, Size in, Size out, bool partial) {
  Settings settings = extra;
  settings["resize"] = "exact";
  settings["height"] = std::to_string(out.height);
  settings["width"] = std::to_string(out.width);
  settings["layout"] = "NHWC";
  Size crop = out;
  if (partial) {
    crop = {std::max(1, out.height * 2 / 3), std::max(1, out.width / 2)};
    settings["center_crop"] = std::to_string(crop.height) + "x" + std::to_string(crop.width);
  }
  const Operation operation = parse_operation(settings, ElementType::f32);
  const Geometry geometry = plan_geometry(operation, in);
  const std::vector<uint8_t> source = noise(in, static_cast<unsigned>(in.height * 1000 + in.width));
  // Exactly the needed pixels in a buffer of their own, so that a sanitizer sees every read beyond.
  const Rect region = needed_source(operation, geometry);
  std::vector<uint8_t> needed;
  for (int y = region.top; y < region.top + region.height; ++y) {
    const auto begin = source.begin() + (static_cast<ptrdiff_t>(y) * in.width + region.left) * 3;
    needed.insert(needed.end(), begin, begin + region.width * 3);
  }
  needed.shrink_to_fit();
  const PixelView view{needed.data(), {region.height, region.width}, static_cast<size_t>(region.width) * 3};
  std::vector<float> output(static_cast<size_t>(pixels(crop)) * 3);
  Resampler resampler(operation);
  resampler.run(geometry, view, region, output.data());
  const Plane expected = reference({in, std::vector<double>(source.begin(), source.end())}, operation, out);
  Difference difference;
  for (int y = 0; y < crop.height; ++y) {
    for (int x = 0; x < crop.width; ++x) {
      for (int c = 0; c < 3; ++c) {
        const double has = output[static_cast<size_t>((y * crop.width + x) * 3 + c)];
        const double off = std::abs(has - expected.at(y - geometry.top, x - geometry.left, c));
        difference.largest = std::max(difference.largest, off);
        difference.beyond += off > 0.01 ? 1U : 0U;
      }
    }
  }
  return difference;
}

const Size kSizes[] = {{1, 1}, {1, 9}, {9, 1}, {2, 3}, {5, 4}, {17, 31}, {33, 16}, {64, 49}, {101, 40}};

}  // namespace

TEST_CASE("float results are those of the definition") {
  for (const char* interpolation : {"bilinear", "bicubic"}) {
    for (const char* antialias : {"true", "false"}) {
      for (const Size in : kSizes) {
        for (const Size out : kSizes) {
          for (const bool partial : {false, true}) {
            CAPTURE(interpolation, antialias, to_string(in), to_string(out), partial);
            const Settings settings{{"interpolation", interpolation}, {"antialias", antialias}, {"round_u8", "false"}};
            REQUIRE(compare(settings, in, out, partial).largest < 2e-3);
          }
        }
      }
    }
  }
}

TEST_CASE("8-bit results are those of the definition but for ties") {
  for (const char* interpolation : {"bilinear", "bicubic"}) {
    for (const char* antialias : {"true", "false"}) {
      size_t beyond = 0;
      for (const Size in : kSizes) {
        for (const Size out : kSizes) {
          for (const bool partial : {false, true}) {
            CAPTURE(interpolation, antialias, to_string(in), to_string(out), partial);
            const Settings settings{{"interpolation", interpolation}, {"antialias", antialias}};
            const Difference difference = compare(settings, in, out, partial);
            REQUIRE(difference.largest <= 1);
            beyond += difference.beyond;
          }
        }
      }
      // Sums that lie on a half in exact arithmetic fall either way; 22 bits leave few of them.
      REQUIRE(beyond < 2500);
    }
  }
}

TEST_CASE("nearest picks the pixel under the centre") {
  REQUIRE(nearest_sources(4, 2, 0, 2) == std::vector<int>{1, 3});
  REQUIRE(nearest_sources(2, 4, 0, 4) == std::vector<int>{0, 0, 1, 1});
  REQUIRE(nearest_sources(7, 3, 1, 2) == std::vector<int>{3, 5});
  REQUIRE(nearest_sources(1, 5, 0, 5) == std::vector<int>{0, 0, 0, 0, 0});
}

TEST_CASE("huge ratios work both ways") {
  REQUIRE(compare({{"round_u8", "false"}}, {3, 5000}, {2, 3}, false).largest < 2e-3);
  REQUIRE(compare({{"round_u8", "false"}}, {5000, 3}, {1, 2}, false).largest < 2e-3);
  REQUIRE(compare({}, {1, 2}, {700, 900}, true).largest <= 1);
}
