// libFuzzer's own mutations, after which most PNGs get right check sums. The first byte chooses the settings.
#include <cstddef>
#include <cstdint>

#include "png_checksums.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  const size_t length = LLVMFuzzerMutate(data, size, max_size);
  using namespace tritonstack::image;
  if (length > 1 && seed % 8 != 0 && is_png(data + 1, length - 1)) mend_png(data + 1, length - 1);
  return length;
}
