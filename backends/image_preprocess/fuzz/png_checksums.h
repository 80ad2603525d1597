// Right check sums for mutated PNGs: without them hardly any would get past its first chunk.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tritonstack::image {

// Whether these bytes start as a PNG does.
bool is_png(const uint8_t* data, size_t size);

// Writes the check sum of every chunk that ends inside the data, up to the first that does not.
void mend_png(uint8_t* data, size_t size);

}  // namespace tritonstack::image
