// PNG through libpng, with the conversions of Pillow's modes: wide samples keep their high byte, 16-bit gray is scaled,
// alpha and colour keys are dropped.
//
// libpng leaves by longjmp on errors; see jpeg.cc for what that asks of the code.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <png.h>
#include <zlib.h>

#include "core/codecs.h"
#include "core/error.h"
#include "core/exif.h"

namespace tritonstack::image {
namespace {

constexpr size_t kSignatureBytes = 8;
constexpr size_t kHeaderBytes = 13;
// Text chunks can be packed a thousandfold; metadata of a real picture stays far below.
constexpr size_t kMaxText = size_t{1} << 20;
constexpr png_alloc_size_t kMaxChunk = png_alloc_size_t{8} << 20;

uint32_t read_u32(const uint8_t* at) {
  return (uint32_t{at[0]} << 24) | (uint32_t{at[1]} << 16) | (uint32_t{at[2]} << 8) | uint32_t{at[3]};
}

struct Chunk {
  char name[4];
  Bytes content;

  bool is(const char* wanted) const { return std::memcmp(name, wanted, 4) == 0; }
};

// Chunks one after the other; false at the end of the file or where it is cut off.
class ChunkWalk {
 public:
  explicit ChunkWalk(Bytes encoded) : bytes_(encoded) {}

  bool next(Chunk& chunk) {
    if (at_ > bytes_.size || bytes_.size - at_ < 12) return false;
    const size_t length = read_u32(bytes_.data + at_);
    if (length > bytes_.size - at_ - 12) return false;
    std::memcpy(chunk.name, bytes_.data + at_ + 4, 4);
    chunk.content = {bytes_.data + at_ + 8, length};
    at_ += length + 12;
    return true;
  }

 private:
  Bytes bytes_;
  size_t at_ = kSignatureBytes;
};

// The text behind a keyword of tEXt and zTXt, or of iTXt; empty where the chunk has another keyword.
std::string text_of(const Chunk& chunk, const std::string& keyword) {
  const auto* begin = reinterpret_cast<const char*>(chunk.content.data);
  const size_t size = chunk.content.size;
  if (size <= keyword.size() || std::memcmp(begin, keyword.c_str(), keyword.size() + 1) != 0) return "";
  size_t at = keyword.size() + 1;
  bool packed = false;
  if (chunk.is("zTXt")) {
    packed = true;
    at += 1;
  } else if (chunk.is("iTXt")) {
    if (size < at + 2) return "";
    packed = begin[at] == 1;
    at += 2;
    for (int zeros = 0; zeros < 2; ++zeros) {
      const auto* zero = at < size ? static_cast<const char*>(std::memchr(begin + at, 0, size - at)) : nullptr;
      if (zero == nullptr) return "";
      at = static_cast<size_t>(zero - begin) + 1;
    }
  }
  if (at > size) return "";
  if (!packed) return std::string(begin + at, size - at);
  std::string text(kMaxText, '\0');
  uLongf unpacked = text.size();
  const int status = uncompress(reinterpret_cast<Bytef*>(text.data()), &unpacked, chunk.content.data + at, size - at);
  if (status != Z_OK) return "";
  text.resize(unpacked);
  return text;
}

// "\nexif\n    1234\n4578…": a block in hexadecimal digits behind three line ends.
std::vector<uint8_t> from_raw_profile(const std::string& text) {
  std::vector<uint8_t> block;
  size_t at = 0;
  for (int lines = 0; lines < 3; ++lines) {
    at = text.find('\n', at);
    if (at == std::string::npos) return block;
    ++at;
  }
  int high = -1;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) continue;
    if (high < 0) {
      high = digit;
    } else {
      block.push_back(static_cast<uint8_t>(high * 16 + digit));
      high = -1;
    }
  }
  return block;
}

int find_orientation(Bytes encoded) {
  Bytes exif;
  std::vector<uint8_t> raw_profile;
  std::string xmp;
  ChunkWalk walk(encoded);
  Chunk chunk;
  while (walk.next(chunk)) {
    if (chunk.is("IEND")) break;
    if (chunk.is("eXIf")) {
      exif = chunk.content;
    } else if (chunk.is("tEXt") || chunk.is("zTXt") || chunk.is("iTXt")) {
      if (std::string text = text_of(chunk, "Raw profile type exif"); !text.empty()) {
        raw_profile = from_raw_profile(text);
      }
      if (std::string text = text_of(chunk, "XML:com.adobe.xmp"); !text.empty()) xmp = std::move(text);
    }
  }
  if (exif.data == nullptr) exif = {raw_profile.data(), raw_profile.size()};
  return orientation_of(exif, {reinterpret_cast<const uint8_t*>(xmp.data()), xmp.size()});
}

bool is_allowed(int depth, int colour) {
  switch (colour) {
    case PNG_COLOR_TYPE_GRAY:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8 || depth == 16;
    case PNG_COLOR_TYPE_PALETTE:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8;
    case PNG_COLOR_TYPE_RGB:
    case PNG_COLOR_TYPE_GRAY_ALPHA:
    case PNG_COLOR_TYPE_RGB_ALPHA:
      return depth == 8 || depth == 16;
    default:
      return false;
  }
}

// Owns the reader; destroying it is safe in every state.
class Reader {
 public:
  explicit Reader(Bytes encoded) : rest_(encoded) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }

  const std::string& message() const { return message_; }

  // False when libpng gave up. `rows` is filled with the rows as libpng gives them, one byte or two a sample.
  bool start(Size stored) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, warn);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    if (info_ == nullptr) {
      message_ = "out of memory";
      return false;
    }
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_user_limits(png_, static_cast<png_uint_32>(stored.width), static_cast<png_uint_32>(stored.height));
    png_set_chunk_malloc_max(png_, kMaxChunk);
    png_set_benign_errors(png_, 1);
    png_set_read_fn(png_, this, read);
    // All chunks but those that make pixels are passed over. Read, some take memory of the length they claim to have,
    // whatever the limit: with benign errors a chunk above it is but a warning.
    constexpr int kAllOfThem = -1;
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, kAllOfThem);
    png_read_info(png_, info_);
    png_set_packing(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_row(uint8_t* row) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_row(png_, row, nullptr);
    return true;
  }

  bool read_image(uint8_t* rows, size_t row_bytes, int height) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    for (int pass = 0; pass < passes_; ++pass) {
      for (int y = 0; y < height; ++y) png_read_row(png_, rows + static_cast<size_t>(y) * row_bytes, nullptr);
    }
    return true;
  }

  // What follows the pixels is read for its check sum, but nothing of it can spoil them: as in Pillow.
  void finish() {
    if (setjmp(png_jmpbuf(png_)) != 0) return;
    png_read_end(png_, nullptr);
  }

  size_t row_bytes() const { return png_get_rowbytes(png_, info_); }
  bool interlaced() const { return passes_ > 1; }
  int colour() const { return png_get_color_type(png_, info_); }
  Size size() const {
    return {static_cast<int>(png_get_image_height(png_, info_)), static_cast<int>(png_get_image_width(png_, info_))};
  }

  // Entries beyond the file's own are black, as in Pillow.
  void copy_palette(uint8_t (*palette)[3]) {
    png_colorp entries = nullptr;
    int count = 0;
    if (png_get_PLTE(png_, info_, &entries, &count) == 0) return;
    for (int i = 0; i < std::min(count, 256); ++i) {
      palette[i][0] = entries[i].red;
      palette[i][1] = entries[i].green;
      palette[i][2] = entries[i].blue;
    }
  }

 private:
  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    static_cast<Reader*>(png_get_error_ptr(png))->message_ = message;
    png_longjmp(png, 1);
  }

  static void warn(png_structp, png_const_charp) {}

  static void read(png_structp png, png_bytep out, size_t count) {
    auto* self = static_cast<Reader*>(png_get_io_ptr(png));
    if (count > self->rest_.size) png_error(png, "cut off before its end");
    std::memcpy(out, self->rest_.data, count);
    self->rest_.data += count;
    self->rest_.size -= count;
  }

  Bytes rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  std::string message_;
};

// One row of samples to RGB.
class RowConverter {
 public:
  RowConverter(int colour, int depth, Reader& reader) : colour_(colour), depth_(depth) {
    if (colour_ == PNG_COLOR_TYPE_PALETTE) reader.copy_palette(palette_);
    for (int value = 0; colour_ == PNG_COLOR_TYPE_GRAY && depth_ <= 8 && value < (1 << depth_); ++value) {
      const auto gray = static_cast<uint8_t>(value * 255 / ((1 << depth_) - 1));
      std::memset(palette_[value], gray, kChannels);
    }
  }

  void convert(const uint8_t* row, int left, int count, uint8_t* rgb) const {
    const bool indexed = colour_ == PNG_COLOR_TYPE_PALETTE || (colour_ == PNG_COLOR_TYPE_GRAY && depth_ <= 8);
    if (indexed) {
      for (int x = 0; x < count; ++x) std::memcpy(rgb + x * kChannels, palette_[row[left + x]], kChannels);
      return;
    }
    if (colour_ == PNG_COLOR_TYPE_GRAY) {
      for (int x = 0; x < count; ++x) {
        const uint8_t* sample = row + static_cast<ptrdiff_t>(left + x) * 2;
        const uint32_t wide = (uint32_t{sample[0]} << 8) | sample[1];
        std::memset(rgb + x * kChannels, static_cast<int>((wide * 255 + 32767) / 65535), kChannels);
      }
      return;
    }
    const bool gray = colour_ == PNG_COLOR_TYPE_GRAY_ALPHA;
    const int bytes = depth_ / 8;
    const int samples = (gray ? 1 : 3) + ((colour_ & PNG_COLOR_MASK_ALPHA) != 0 ? 1 : 0);
    const int next = gray ? 0 : bytes;
    const uint8_t* pixel = row + static_cast<ptrdiff_t>(left) * samples * bytes;
    for (int x = 0; x < count; ++x) {
      rgb[0] = pixel[0];
      rgb[1] = pixel[next];
      rgb[2] = pixel[2 * next];
      rgb += kChannels;
      pixel += samples * bytes;
    }
  }

 private:
  int colour_;
  int depth_;
  uint8_t palette_[256][3] = {};
};

[[noreturn]] void damaged(const std::string& reason) {
  const bool cut = reason == "cut off before its end";
  throw ImageError(FailureKind::damaged, cut ? reason : "damaged: " + reason);
}

}  // namespace

ImageHeader read_png_header(Bytes encoded, bool exif, bool& has_alpha) {
  ChunkWalk walk(encoded);
  Chunk chunk;
  if (!walk.next(chunk)) damaged("cut off before its end");
  if (!chunk.is("IHDR") || chunk.content.size < kHeaderBytes) damaged("a PNG that does not start with its header");
  const uint8_t* fields = chunk.content.data;
  const uint32_t width = read_u32(fields);
  const uint32_t height = read_u32(fields + 4);
  constexpr uint32_t kLargest = 0x7FFFFFFF;
  if (width == 0 || height == 0 || width > kLargest || height > kLargest) {
    damaged("its header says " + std::to_string(height) + " × " + std::to_string(width) + " pixels");
  }
  const int colour = fields[9];
  if (!is_allowed(fields[8], colour)) {
    damaged("colour type " + std::to_string(colour) + " with " + std::to_string(fields[8]) + " bits a sample");
  }
  ImageHeader header;
  header.stored = {static_cast<int>(height), static_cast<int>(width)};
  header.components = (colour & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
  has_alpha = (colour & PNG_COLOR_MASK_ALPHA) != 0;
  if (exif) header.orientation = find_orientation(encoded);
  return header;
}

void decode_png(Bytes encoded, const ImageHeader& header, Rect region, uint8_t* rgb) {
  Reader reader(encoded);
  if (!reader.start(header.stored)) damaged(reader.message());
  if (reader.size() != header.stored) damaged("two headers that differ");
  const RowConverter converter(reader.colour(), encoded.data[kSignatureBytes + 8 + 8], reader);
  const size_t row_bytes = reader.row_bytes();
  const size_t out_bytes = static_cast<size_t>(region.width) * kChannels;
  const int height = header.stored.height;
  std::vector<uint8_t> rows(reader.interlaced() ? row_bytes * static_cast<size_t>(height) : row_bytes);
  if (reader.interlaced() && !reader.read_image(rows.data(), row_bytes, height)) damaged(reader.message());
  for (int y = 0; y < height; ++y) {
    if (!reader.interlaced() && !reader.read_row(rows.data())) damaged(reader.message());
    const int row = y - region.top;
    if (row < 0 || row >= region.height) continue;
    const uint8_t* from = rows.data() + (reader.interlaced() ? static_cast<size_t>(y) * row_bytes : 0);
    converter.convert(from, region.left, region.width, rgb + static_cast<size_t>(row) * out_bytes);
  }
  reader.finish();
}

}  // namespace tritonstack::image
