// The tables of the GPU's 16-bit kernel, walked here as the kernel walks them, against the weights in double.
#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "catch.h"
#include "core/filter.h"
#include "core/short_tables.h"

using namespace tritonstack::image;

namespace {

int half(uint32_t pair, int n) { return static_cast<int16_t>(n == 0 ? pair & 0xFFFFU : pair >> 16); }
int unsigned_half(uint32_t pair, int n) { return static_cast<int>(n == 0 ? pair & 0xFFFFU : pair >> 16); }

// The outputs of group `g` of a column of pixels.
std::vector<double> walk_rows(const RowProgram& program, const std::vector<int>& pixels, bool cubic, int g) {
  const int in = static_cast<int>(pixels.size());
  std::vector<double> outputs;
  int64_t now = 0;
  int64_t next = 0;
  bool counts = cubic;  // the first output of a triangle's group is the one before
  for (int s = g * program.stride;; ++s) {
    const RowStep& step = program.steps.at(static_cast<size_t>(s));
    for (int n = 0; n < 2; ++n) {
      const int pixel = pixels[static_cast<size_t>(std::min(step.row + n, in - 1))];
      now += int64_t{pixel} * (cubic ? half(step.weights, n) : unsigned_half(step.weights, n));
      next += int64_t{pixel} * (cubic ? half(step.next_weights, n) : unsigned_half(step.next_weights, n));
    }
    if ((step.flags & kOutputComplete) == 0) continue;
    if (counts) outputs.push_back(static_cast<double>(now) / (1 << (cubic ? kCubicRowBits : kLinearRowBits)));
    if ((step.flags & kGroupComplete) != 0) return outputs;
    counts = true;
    now = next;
    next = 0;
  }
}

std::vector<double> walk_all(const RowProgram& program, const std::vector<int>& pixels, bool cubic) {
  std::vector<double> outputs;
  for (int g = 0; g < program.groups; ++g) {
    const std::vector<double> group = walk_rows(program, pixels, cubic, g);
    REQUIRE((g == program.groups - 1 || group.size() == static_cast<size_t>(kGroupOutputs)));
    outputs.insert(outputs.end(), group.begin(), group.end());
  }
  return outputs;
}

std::vector<double> expected(const Taps<double>& taps, const std::vector<int>& pixels) {
  std::vector<double> outputs;
  for (int i = 0; i < taps.count(); ++i) {
    double sum = 0;
    for (int k = 0; k < taps.taps[static_cast<size_t>(i)]; ++k) {
      sum += taps.of(i)[k] * pixels[static_cast<size_t>(taps.first[static_cast<size_t>(i)] + k)];
    }
    outputs.push_back(sum);
  }
  return outputs;
}

const std::vector<std::tuple<int, int>> kSizes = {{1, 1}, {1, 7}, {2, 1}, {3, 5}, {37, 36}, {64, 64}, {375, 256},
                                                  {1080, 256}, {1920, 455}, {500, 341}, {17, 3}, {2500, 4}, {97, 300}};

}  // namespace

TEST_CASE("rows and columns by short weights are those in double") {
  std::mt19937 random(11);
  for (const auto& [in, out] : kSizes) {
    for (const Interpolation interpolation : {Interpolation::bilinear, Interpolation::bicubic}) {
      for (const bool antialias : {true, false}) {
        const bool cubic = interpolation == Interpolation::bicubic;
        CAPTURE(in, out, cubic, antialias);
        std::vector<int> pixels(static_cast<size_t>(in));
        for (int& pixel : pixels) pixel = static_cast<int>(random() % 256);
        const int begin = out / 5;
        const int count = std::max(1, out - 2 * begin);
        const Taps<double> taps = make_taps(interpolation, antialias, in, out, begin, count);
        const std::vector<double> wanted = expected(taps, pixels);
        const RowProgram program = make_row_program(interpolation, antialias, in, out, begin, count);
        const std::vector<double> found = walk_all(program, pixels, cubic);
        REQUIRE(found.size() == static_cast<size_t>(count));
        for (size_t i = 0; i < found.size(); ++i) REQUIRE(std::abs(found[i] - wanted[i]) < 0.25);
        const ColumnTable table = make_column_table(interpolation, antialias, in, out, begin, count);
        for (int i = 0; i < count; ++i) {
          int64_t sum = 0;
          for (int n = 0; n < 2 * table.pairs; ++n) {
            const int column = table.firsts[static_cast<size_t>(i)] + n;
            const int weight = half(table.weights[static_cast<size_t>(i * table.pairs + n / 2)], n % 2);
            if (weight != 0) sum += int64_t{pixels.at(static_cast<size_t>(column))} * weight;
            REQUIRE((weight == 0 || column < table.ends[static_cast<size_t>(i)]));
          }
          REQUIRE(table.firsts[static_cast<size_t>(i)] % 2 == 0);
          REQUIRE(std::abs(static_cast<double>(sum) / (1 << kColumnBits) - wanted[static_cast<size_t>(i)]) < 0.25);
        }
      }
    }
  }
}

TEST_CASE("short weights keep a picture of one colour") {
  for (const auto& [in, out] : kSizes) {
    for (const Interpolation interpolation : {Interpolation::bilinear, Interpolation::bicubic}) {
      CAPTURE(in, out);
      const bool cubic = interpolation == Interpolation::bicubic;
      const std::vector<int> pixels(static_cast<size_t>(in), 201);
      const RowProgram program = make_row_program(interpolation, true, in, out, 0, out);
      for (const double value : walk_all(program, pixels, cubic)) REQUIRE(value == 201.0);
      const ColumnTable table = make_column_table(interpolation, true, in, out, 0, out);
      for (int i = 0; i < out; ++i) {
        int sum = 0;
        for (int n = 0; n < 2 * table.pairs; ++n) {
          sum += half(table.weights[static_cast<size_t>(i * table.pairs + n / 2)], n % 2);
        }
        REQUIRE(sum == 1 << kColumnBits);
      }
    }
  }
}

TEST_CASE("a group of a shrinking triangle reads each row once") {
  const RowProgram program = make_row_program(Interpolation::bilinear, true, 1080, 256, 16, 224);
  REQUIRE(program.groups == 28);
  for (int g = 0; g < program.groups; ++g) {
    std::vector<int> times(1081, 0);
    for (int s = g * program.stride;; ++s) {
      const RowStep& step = program.steps.at(static_cast<size_t>(s));
      for (int n = 0; n < 2; ++n) {
        const bool used = unsigned_half(step.weights, n) != 0 || unsigned_half(step.next_weights, n) != 0;
        times[static_cast<size_t>(step.row + n)] += used;
      }
      REQUIRE(step.row < program.ends[static_cast<size_t>(std::min(8 * g + 7, 223))]);
      if ((step.flags & kGroupComplete) != 0) break;
    }
    REQUIRE(*std::max_element(times.begin(), times.end()) == 1);
  }
}
