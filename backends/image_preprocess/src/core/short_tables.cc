#include "core/short_tables.h"

#include <algorithm>
#include <cmath>

#include "core/filter.h"

namespace tritonstack::image {
namespace {

// Weights of output i as integers that add up to 2^bits. Sums are rounded, not weights, so that errors do not add up.
std::vector<int32_t> rounded(const Taps<double>& taps, int i, int bits) {
  std::vector<int32_t> weights(static_cast<size_t>(taps.taps[static_cast<size_t>(i)]));
  double sum = 0.0;
  int32_t before = 0;
  for (size_t k = 0; k < weights.size(); ++k) {
    sum += taps.of(i)[k];
    const auto now = static_cast<int32_t>(std::lround(sum * (1 << bits)));
    weights[k] = now - before;
    before = now;
  }
  return weights;
}

uint32_t pack(int32_t low, int32_t high) {
  return static_cast<uint32_t>(static_cast<uint16_t>(low)) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
}

// One output's window: its first source pixel and the weights from there on.
struct Window {
  int first = 0;
  std::vector<int32_t> weights;

  int end() const { return first + static_cast<int>(weights.size()); }
  int32_t at(int pixel) const {
    return pixel >= first && pixel < end() ? weights[static_cast<size_t>(pixel - first)] : 0;
  }
};

// Steps for the rows [from, to), the last one marked; one step of weight 0 where there are none.
void add_steps(std::vector<RowStep>& steps, int from, int to, int in, const Window& now, const Window& next) {
  if (from >= to) steps.push_back({std::clamp(from, 0, in - 1), 0, 0, 0});
  for (int row = from; row < to; row += 2) {
    const bool both = row + 1 < to;
    steps.push_back({row, pack(now.at(row), both ? now.at(row + 1) : 0),
                     pack(next.at(row), both ? next.at(row + 1) : 0), 0});
  }
  steps.back().flags = kOutputComplete;
}

}  // namespace

RowProgram make_row_program(Interpolation interpolation, bool antialias, int in, int out, int begin, int count) {
  const bool cubic = interpolation == Interpolation::bicubic;
  const bool streamed = !cubic && antialias && in >= out;
  const int before = begin > 0 ? 1 : 0;
  const Taps<double> taps = make_taps(interpolation, antialias, in, out, begin - before, count + before);
  std::vector<Window> windows;  // of output i at i + 1; none where there is none
  windows.reserve(static_cast<size_t>(count) + 2);
  if (before == 0) windows.emplace_back();
  for (int i = 0; i < taps.count(); ++i) {
    windows.push_back({taps.first[static_cast<size_t>(i)], rounded(taps, i, cubic ? kCubicRowBits : kLinearRowBits)});
  }
  windows.emplace_back();
  const auto window = [&](int i) -> const Window& { return windows[static_cast<size_t>(i + 1)]; };
  const Window none;

  RowProgram program;
  program.groups = (count + kGroupOutputs - 1) / kGroupOutputs;
  std::vector<std::vector<RowStep>> groups(static_cast<size_t>(program.groups));
  for (int i = 0; i < count; ++i) {
    std::vector<RowStep>& steps = groups[static_cast<size_t>(i / kGroupOutputs)];
    const Window& now = window(i);
    const Window& last = window(i - 1);
    const int shared_end = streamed && !last.weights.empty() ? std::max(last.end(), now.first) : now.first;
    if (steps.empty() && !cubic) add_steps(steps, now.first, shared_end, in, none, now);
    add_steps(steps, shared_end, now.end(), in, now, streamed ? window(i + 1) : none);
    if (i % kGroupOutputs == kGroupOutputs - 1 || i == count - 1) steps.back().flags |= kGroupComplete;
    program.ends.push_back(std::max(now.end(), program.ends.empty() ? 0 : program.ends.back()));
  }
  for (const auto& steps : groups) program.stride = std::max(program.stride, static_cast<int>(steps.size()));
  constexpr RowStep kNothing{0, 0, 0, kOutputComplete | kGroupComplete};
  for (const auto& steps : groups) {
    program.steps.insert(program.steps.end(), steps.begin(), steps.end());
    program.steps.resize(program.steps.size() + static_cast<size_t>(program.stride) - steps.size(), kNothing);
  }
  program.steps.resize(program.steps.size() + 32, kNothing);
  return program;
}

ColumnTable make_column_table(Interpolation interpolation, bool antialias, int in, int out, int begin, int count) {
  const Taps<double> taps = make_taps(interpolation, antialias, in, out, begin, count);
  ColumnTable table;
  std::vector<Window> windows;
  for (int i = 0; i < count; ++i) {
    Window window{taps.first[static_cast<size_t>(i)], rounded(taps, i, kColumnBits)};
    // Pillow's windows often end in pixels without weight, which would cost a pair.
    while (window.weights.back() == 0) window.weights.pop_back();
    while (window.weights.front() == 0) {
      window.weights.erase(window.weights.begin());
      ++window.first;
    }
    table.firsts.push_back(window.first / 2 * 2);
    table.ends.push_back(window.end());
    table.pairs = std::max(table.pairs, (table.ends.back() - table.firsts.back() + 1) / 2);
    windows.push_back(std::move(window));
  }
  for (int i = 0; i < count; ++i) {
    const Window& window = windows[static_cast<size_t>(i)];
    for (int n = 0; n < table.pairs; ++n) {
      const int pixel = table.firsts[static_cast<size_t>(i)] + 2 * n;
      table.weights.push_back(pack(window.at(pixel), window.at(pixel + 1)));
    }
  }
  return table;
}

}  // namespace tritonstack::image
