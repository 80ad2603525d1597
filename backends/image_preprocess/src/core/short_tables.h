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

// Outputs of an axis that one group of steps makes.
constexpr int kGroupOutputs = 8;

// Two neighbouring source rows, `row` and the next one, and the weights (low half: of `row`) with which they are added to
// the current output row and to the one after it.
struct RowStep {
  int32_t row;
  uint32_t weights;
  uint32_t next_weights;
  int32_t flags;
};
constexpr int32_t kOutputComplete = 1;  // after this step the current output has all its rows
constexpr int32_t kGroupComplete = 2;   // and so has the last output of the group

// Steps of the outputs begin … begin + count - 1 of an axis. Those of group g, which are the outputs begin + 8 g … + 7, begin
// at steps[g * stride]. A group of the triangle filter begins with the steps of the output before it, whose sums count for
// its first output only by next_weights; one of the cubic begins with its own. Behind the last group lie 32 steps more, which
// may be read. Every output has one step at least.
//
// When shrinking with the triangle filter, a source row lies under two outputs at most, so each row is in one step of a
// group only. In all other cases each output has all its rows in its own steps, and next_weights are 0.
struct RowProgram {
  std::vector<RowStep> steps;
  int stride = 0;
  int groups = 0;
  // One behind the last source row that the outputs up to and with i read.
  std::vector<int32_t> ends;
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
