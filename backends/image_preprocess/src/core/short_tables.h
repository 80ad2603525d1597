// The weights of a resampling as short integers, laid out in the order in which the GPU's kernel for elements of at most 16
// bits takes them. Sums of weights are exact, so a picture of one colour keeps it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/operation.h"

namespace tritonstack::image {

// Bits behind the binary point. A row's sum must fit 16 bits with 8 of them cut off: pixels times 2^15, and times 2^14 with
// a sign for the cubic, which leaves 0 … 255. Columns use 14 in both cases.
constexpr int kLinearRowBits = 15;
constexpr int kCubicRowBits = 14;
constexpr int kColumnBits = 14;

// Two neighbouring source rows, `row` and the next one, and the weights (low half: of `row`) with which they are added to
// the current output row and to the one after it. After a step with `last` the current output row is complete.
struct RowStep {
  int32_t row;
  uint32_t weights;
  uint32_t next_weights;
  int32_t last;
};

// Steps of the outputs begin … begin + count - 1 of an axis: those of output begin + i are starts[i + 1] … starts[i + 2] - 1.
// Steps from starts[0] on belong to the output before, and bring what output begin needs of its rows. Every output has
// one step at least.
//
// When shrinking with the triangle filter, a source row lies under two outputs at most, so each row is in one step only.
// In all other cases each output has all its rows in its own steps, and next_weights are 0.
struct RowProgram {
  std::vector<RowStep> steps;
  std::vector<int32_t> starts;
};

RowProgram make_row_program(Interpolation interpolation, bool antialias, int in, int out, int begin, int count);

// Source pixels of output begin + i: pairs of neighbours from firsts[i] on, an even number; weights[i * pairs + n] holds
// those of pair n (low half: of the even pixel), 0 beyond the window. ends[i] is one behind the last pixel with a weight.
struct ColumnTable {
  std::vector<int32_t> firsts;
  std::vector<int32_t> ends;
  std::vector<uint32_t> weights;
  int pairs = 0;
};

ColumnTable make_column_table(Interpolation interpolation, bool antialias, int in, int out, int begin, int count);

}  // namespace tritonstack::image
