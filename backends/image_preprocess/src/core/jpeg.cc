// JPEG through libjpeg-turbo, with the settings of Pillow: slow integer IDCT, smooth chroma upsampling.
//
// libjpeg leaves by longjmp on errors. So everything between setjmp and the calls into libjpeg is plain data, and what
// owns memory lives outside of that function.
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

#include <jpeglib.h>
// After jpeglib.h, which does not include what it needs.
#include <jerror.h>

#include "core/codecs.h"
#include "core/error.h"
#include "core/exif.h"

namespace tritonstack::image {
namespace {

constexpr int kMarkerSof0 = 0xC0;
constexpr int kMarkerSof15 = 0xCF;
constexpr int kMarkerDht = 0xC4;
constexpr int kMarkerJpg = 0xC8;
constexpr int kMarkerDac = 0xCC;
constexpr int kMarkerSos = 0xDA;
constexpr int kMarkerEoi = 0xD9;
constexpr int kMarkerApp1 = 0xE1;
// A progressive picture needs a few dozen scans at most; crafted ones have thousands to burn time.
constexpr int kMaxScans = 500;
// Smooth upsampling reads neighbours, so pixels near the border of a cropped decode differ. This is more than the
// largest block of a sampling factor of 4.
constexpr int kMargin = 64;

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
  bool truncated;
};

struct ProgressMonitor {
  jpeg_progress_mgr base;
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  (*info->err->format_message)(info, errors->message);
  std::longjmp(errors->jump, 1);
}

// Warnings (corrupt data that can be decoded all the same) are ignored as Pillow ignores them.
void say_nothing(j_common_ptr) {}

void source_init(j_decompress_ptr) {}

// All bytes are in memory from the start: asking for more means that the file is cut off.
boolean source_fill(j_decompress_ptr info) {
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  errors->truncated = true;
  ERREXIT(info, JERR_INPUT_EOF);
  return FALSE;
}

void source_skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<size_t>(count) > info->src->bytes_in_buffer) source_fill(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<size_t>(count);
}

void source_end(j_decompress_ptr) {}

void count_scans(j_common_ptr info) {
  auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number > kMaxScans) ERREXIT(info, JERR_BAD_PROGRESSION);
}

// Owns the decompressor; destroying it is safe in every state.
class Decompressor {
 public:
  explicit Decompressor(Bytes encoded) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = leave;
    errors_.base.output_message = say_nothing;
    source_.next_input_byte = encoded.data;
    source_.bytes_in_buffer = encoded.size;
    source_.init_source = source_init;
    source_.fill_input_buffer = source_fill;
    source_.skip_input_data = source_skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = source_end;
    progress_.base.progress_monitor = count_scans;
  }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
  ~Decompressor() {
    if (created_) jpeg_destroy_decompress(&info_);
  }

  // Writes the region's pixels. False when libjpeg gave up; the reason is in message().
  bool run(Size stored, Rect region, uint8_t* rgb) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    created_ = true;
    info_.src = &source_;
    info_.progress = &progress_.base;
    jpeg_read_header(&info_, TRUE);
    // The buffers were made for what our own reading of the header said.
    if (info_.image_height != static_cast<JDIMENSION>(stored.height) ||
        info_.image_width != static_cast<JDIMENSION>(stored.width)) {
      ERREXIT(&info_, JERR_SOF_DUPLICATE);
    }
    info_.out_color_space = info_.num_components == 4 ? JCS_CMYK : JCS_RGB;
    info_.dct_method = JDCT_ISLOW;
    info_.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&info_);
    read_rows(region, rgb);
    jpeg_finish_decompress(&info_);
    return true;
  }

  std::string message() const {
    return errors_.truncated ? "cut off before its end" : "damaged: " + std::string(errors_.message);
  }

 private:
  void read_rows(Rect region, uint8_t* rgb) {
    const auto width = static_cast<JDIMENSION>(region.width);
    JDIMENSION left = region.left > kMargin ? static_cast<JDIMENSION>(region.left - kMargin) : 0;
    JDIMENSION across = static_cast<JDIMENSION>(region.left) + width + kMargin - left;
    if (left + across > info_.output_width) across = info_.output_width - left;
    if (left > 0 || across < info_.output_width) jpeg_crop_scanline(&info_, &left, &across);
    const auto components = static_cast<JDIMENSION>(info_.output_components);
    JSAMPARRAY line =
        (*info_.mem->alloc_sarray)(reinterpret_cast<j_common_ptr>(&info_), JPOOL_IMAGE, across * components, 1);
    const auto top = static_cast<JDIMENSION>(region.top);
    if (region.top > kMargin) skip(static_cast<JDIMENSION>(region.top - kMargin));
    while (info_.output_scanline < top) read_line(line);
    const JSAMPLE* wanted = line[0] + (static_cast<JDIMENSION>(region.left) - left) * components;
    const JDIMENSION bottom = top + static_cast<JDIMENSION>(region.height);
    const size_t row_bytes = static_cast<size_t>(region.width) * kChannels;
    while (info_.output_scanline < bottom) {
      read_line(line);
      if (components == 4) {
        convert_cmyk(wanted, region.width, rgb);
      } else {
        std::memcpy(rgb, wanted, row_bytes);
      }
      rgb += row_bytes;
    }
    // Skipping to the very end would make libjpeg stop reading, and a cut off file would pass for a whole one.
    if (info_.output_scanline + 1 < info_.output_height) skip(info_.output_height - 1 - info_.output_scanline);
    if (info_.output_scanline < info_.output_height) read_line(line);
  }

  void read_line(JSAMPARRAY line) {
    if (jpeg_read_scanlines(&info_, line, 1) != 1) source_fill(&info_);
  }

  void skip(JDIMENSION lines) {
    if (jpeg_skip_scanlines(&info_, lines) != lines) source_fill(&info_);
  }

  // As Pillow's convert("RGB") of its inverted reading: x · (255 − k) / 255, rounded.
  static void convert_cmyk(const JSAMPLE* from, int count, uint8_t* rgb) {
    for (int i = 0; i < count; ++i) {
      const int not_black = from[3];
      for (int c = 0; c < kChannels; ++c) {
        const int ink = 255 - from[c];
        const int product = ink * not_black + 128;
        rgb[c] = static_cast<uint8_t>(not_black - (((product >> 8) + product) >> 8));
      }
      from += 4;
      rgb += kChannels;
    }
  }

  jpeg_decompress_struct info_{};
  ErrorManager errors_{};
  jpeg_source_mgr source_{};
  ProgressMonitor progress_{};
  bool created_ = false;
};

[[noreturn]] void cut_off() {
  throw ImageError(FailureKind::damaged, "cut off inside its header");
}

// Walks over the markers before the first scan.
class MarkerWalk {
 public:
  explicit MarkerWalk(Bytes encoded) : bytes_(encoded) {}

  // The next marker, and its content where it has one. Raises ImageError at the end of the data.
  int next(Bytes& content) {
    int marker = 0;
    do {
      while (byte(at_) != 0xFF) ++at_;
      while (byte(at_) == 0xFF) ++at_;
      marker = byte(at_++);
    } while (marker == 0);
    content = {};
    const bool alone = marker == 0x01 || (marker >= 0xD0 && marker <= kMarkerEoi);
    if (alone) return marker;
    const size_t length = (static_cast<size_t>(byte(at_)) << 8) | static_cast<size_t>(byte(at_ + 1));
    if (length < 2 || length > bytes_.size - at_) cut_off();
    content = {bytes_.data + at_ + 2, length - 2};
    at_ += length;
    return marker;
  }

 private:
  int byte(size_t at) const {
    if (at >= bytes_.size) cut_off();
    return bytes_.data[at];
  }

  Bytes bytes_;
  size_t at_ = 2;
};

bool is_frame(int marker) {
  return marker >= kMarkerSof0 && marker <= kMarkerSof15 && marker != kMarkerDht && marker != kMarkerJpg &&
         marker != kMarkerDac;
}

void read_frame(int marker, Bytes content, ImageHeader& header) {
  if (content.size < 6) cut_off();
  const uint8_t* frame = content.data;
  if (frame[0] != 8) {
    throw ImageError(FailureKind::format, "a JPEG of " + std::to_string(frame[0]) + " bits a sample; expected 8");
  }
  header.stored = {(frame[1] << 8) | frame[2], (frame[3] << 8) | frame[4]};
  header.components = frame[5];
  header.progressive = (marker & 3) == 2;
  if (header.stored.height == 0 || header.stored.width == 0) {
    throw ImageError(FailureKind::damaged, "damaged: its header says " + to_string(header.stored) + " pixels");
  }
  if (header.components != 1 && header.components != 3 && header.components != 4) {
    throw ImageError(FailureKind::format,
                     "a JPEG of " + std::to_string(header.components) + " components; expected 1, 3 or 4");
  }
}

bool starts_with(Bytes content, const char* prefix, size_t length) {
  return content.size >= length && std::memcmp(content.data, prefix, length) == 0;
}

constexpr char kExif[] = "Exif\0";                       // with the terminating zero: six bytes
constexpr char kXmp[] = "http://ns.adobe.com/xap/1.0/";  // with the terminating zero

}  // namespace

ImageHeader read_jpeg_header(Bytes encoded, bool exif) {
  ImageHeader header;
  bool framed = false;
  Bytes first_exif;
  std::string joined_exif;
  Bytes xmp;
  MarkerWalk walk(encoded);
  for (;;) {
    Bytes content;
    const int marker = walk.next(content);
    if (marker == kMarkerSos) break;
    if (marker == kMarkerEoi) cut_off();
    if (is_frame(marker) && !framed) {
      read_frame(marker, content, header);
      framed = true;
    } else if (marker == kMarkerApp1 && exif && starts_with(content, kExif, sizeof kExif)) {
      // A block too large for one segment goes on in the next.
      if (first_exif.data == nullptr) {
        first_exif = content;
      } else {
        if (joined_exif.empty()) {
          joined_exif.assign(reinterpret_cast<const char*>(first_exif.data), first_exif.size);
        }
        joined_exif.append(reinterpret_cast<const char*>(content.data) + sizeof kExif, content.size - sizeof kExif);
      }
    } else if (marker == kMarkerApp1 && exif && starts_with(content, kXmp, sizeof kXmp)) {
      xmp = {content.data + sizeof kXmp, content.size - sizeof kXmp};
    }
  }
  if (!framed) throw ImageError(FailureKind::damaged, "damaged: a JPEG without a frame header");
  const Bytes joined{reinterpret_cast<const uint8_t*>(joined_exif.data()), joined_exif.size()};
  header.orientation = orientation_of(joined_exif.empty() ? first_exif : joined, xmp);
  return header;
}

void decode_jpeg(Bytes encoded, const ImageHeader& header, Rect region, uint8_t* rgb) {
  Decompressor decompressor(encoded);
  if (!decompressor.run(header.stored, region, rgb)) {
    throw ImageError(FailureKind::damaged, decompressor.message());
  }
}

}  // namespace tritonstack::image
