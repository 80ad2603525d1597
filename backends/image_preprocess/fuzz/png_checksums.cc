#include "png_checksums.h"

#include <algorithm>
#include <iterator>

namespace tritonstack::image {
namespace {

constexpr uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

uint32_t checksum(const uint8_t* data, size_t size) {
  uint32_t sum = 0xFFFFFFFFU;
  for (size_t i = 0; i < size; ++i) {
    sum ^= data[i];
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (0xEDB88320U & (0U - (sum & 1U)));
  }
  return ~sum;
}

}  // namespace

bool is_png(const uint8_t* data, size_t size) {
  return size > std::size(kSignature) && std::equal(std::begin(kSignature), std::end(kSignature), data);
}

void mend_png(uint8_t* data, size_t size) {
  size_t at = std::size(kSignature);
  while (at + 12 <= size) {
    const size_t length =
        (size_t{data[at]} << 24) | (size_t{data[at + 1]} << 16) | (size_t{data[at + 2]} << 8) | size_t{data[at + 3]};
    if (length > size - at - 12) return;
    const uint32_t sum = checksum(data + at + 4, length + 4);
    for (size_t i = 0; i < 4; ++i) data[at + 8 + length + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += length + 12;
  }
}

}  // namespace tritonstack::image
