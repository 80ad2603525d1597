#include "core/exif.h"

#include <cstring>
#include <optional>
#include <string_view>

namespace tritonstack::image {
namespace {

constexpr uint32_t kOrientation = 0x0112;
constexpr size_t kEntryBytes = 12;
// TIFF types by number.
constexpr uint32_t kShort = 3;
constexpr uint32_t kLong = 4;
constexpr uint32_t kSignedByte = 6;
constexpr uint32_t kSignedShort = 8;
constexpr uint32_t kSignedLong = 9;

// A TIFF file in memory; reads beyond its end give nothing.
class Tiff {
 public:
  explicit Tiff(Bytes bytes) : bytes_(bytes) {
    if (bytes_.size < 8) return;
    const bool little = bytes_.data[0] == 'I' && bytes_.data[1] == 'I';
    const bool big = bytes_.data[0] == 'M' && bytes_.data[1] == 'M';
    little_ = little;
    valid_ = (little || big) && read(2, 2) == 42U;
  }

  bool valid() const { return valid_; }

  std::optional<uint32_t> read(size_t offset, size_t width) const {
    if (offset > bytes_.size || width > bytes_.size - offset) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < width; ++i) {
      const size_t at = little_ ? offset + width - 1 - i : offset + i;
      value = (value << 8) | bytes_.data[at];
    }
    return value;
  }

 private:
  Bytes bytes_;
  bool little_ = false;
  bool valid_ = false;
};

size_t width_of(uint32_t type) {
  switch (type) {
    case kSignedByte:
      return 1;
    case kShort:
    case kSignedShort:
      return 2;
    case kLong:
    case kSignedLong:
      return 4;
    default:
      return 0;  // a type that cannot hold an orientation
  }
}

// The last entry of the first directory counts, as in Pillow.
std::optional<uint32_t> from_exif(Bytes exif) {
  while (exif.size >= 6 && std::memcmp(exif.data, "Exif\0\0", 6) == 0) {
    exif.data += 6;
    exif.size -= 6;
  }
  const Tiff tiff(exif);
  if (!tiff.valid()) return std::nullopt;
  const size_t directory = tiff.read(4, 4).value_or(0);
  const uint32_t entries = tiff.read(directory, 2).value_or(0);
  std::optional<uint32_t> found;
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    const auto tag = tiff.read(entry, 2);
    const auto type = tiff.read(entry + 2, 2);
    const auto count = tiff.read(entry + 4, 4);
    const auto offset = tiff.read(entry + 8, 4);
    if (!offset) break;
    if (*tag != kOrientation || *count == 0) continue;
    const size_t width = width_of(*type);
    if (width == 0) continue;
    const bool inside = uint64_t{*count} * width <= 4;
    if (const auto value = tiff.read(inside ? entry + 8 : *offset, width)) found = value;
  }
  return found;
}

// tiff:Orientation="6" or <tiff:Orientation>6
std::optional<uint32_t> from_xmp(Bytes xmp) {
  if (xmp.size == 0) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(xmp.data), xmp.size);
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = text.find(kName); at != std::string_view::npos; at = text.find(kName, at + 1)) {
    const std::string_view rest = text.substr(at + kName.size());
    size_t digit = 0;
    if (rest.substr(0, 2) == "=\"") digit = 2;
    if (rest.substr(0, 1) == ">") digit = 1;
    if (digit == 0 || rest.size() <= digit || rest[digit] < '0' || rest[digit] > '9') continue;
    return static_cast<uint32_t>(rest[digit] - '0');
  }
  return std::nullopt;
}

}  // namespace

int orientation_of(Bytes exif, Bytes xmp) {
  std::optional<uint32_t> value = from_exif(exif);
  if (!value) value = from_xmp(xmp);
  return value && *value >= 2 && *value <= 8 ? static_cast<int>(*value) : 1;
}

}  // namespace tritonstack::image
