// The few shapes and views that every part of the backend speaks in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tritonstack::image {

struct Size {
  int height = 0;
  int width = 0;
};

inline bool operator==(Size a, Size b) {
  return a.height == b.height && a.width == b.width;
}
inline bool operator!=(Size a, Size b) {
  return !(a == b);
}

inline int64_t pixels(Size size) {
  return int64_t{size.height} * size.width;
}

// "480 × 640", height first as everywhere in this project.
std::string to_string(Size size);

struct Rect {
  int top = 0;
  int left = 0;
  int height = 0;
  int width = 0;
};

// Borrowed bytes; whoever hands them out says how long they live.
struct Bytes {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

// Borrowed 8-bit RGB pixels, three bytes each, rows `row_bytes` apart.
struct PixelView {
  const uint8_t* data = nullptr;
  Size size;
  size_t row_bytes = 0;

  const uint8_t* row(int y) const { return data + static_cast<size_t>(y) * row_bytes; }
  const uint8_t* at(int y, int x) const { return row(y) + static_cast<size_t>(x) * 3; }
};

constexpr int kChannels = 3;

// Where bytes lie, as Triton tells it. `device` counts for `gpu` only.
enum class Memory { cpu, pinned, gpu };

struct MemoryPlace {
  Memory memory = Memory::cpu;
  int device = 0;
};

}  // namespace tritonstack::image
