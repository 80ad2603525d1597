#include "jpeg_writer.h"

#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

namespace tritonstack::image {
namespace {

void write_rows(jpeg_compress_struct& info, const JpegKind& kind) {
  std::vector<uint8_t> row(static_cast<size_t>(kind.size.width * kind.components));
  for (int y = 0; y < kind.size.height; ++y) {
    for (int x = 0; x < kind.size.width; ++x) {
      for (int c = 0; c < kind.components; ++c) {
        row[static_cast<size_t>(x * kind.components + c)] =
            static_cast<uint8_t>((x * (3 + c) + y * (5 - c) + (x / 7 + y / 5) % 2 * 90) & 255);
      }
    }
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&info, &line, 1);
  }
}

}  // namespace

std::vector<uint8_t> make_jpeg(const JpegKind& kind) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &buffer, &bytes);
  info.image_height = static_cast<JDIMENSION>(kind.size.height);
  info.image_width = static_cast<JDIMENSION>(kind.size.width);
  info.input_components = kind.components;
  info.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : kind.components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (kind.ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, 88, TRUE);
  for (int c = 0; kind.components > 1 && c < kind.components; ++c) {
    const bool sampled = c == 0 || c == 3;
    info.comp_info[c].h_samp_factor = sampled ? kind.sampling.horizontal : 1;
    info.comp_info[c].v_samp_factor = sampled ? kind.sampling.vertical : 1;
  }
  info.arith_code = kind.arithmetic ? TRUE : FALSE;
  if (kind.progressive) jpeg_simple_progression(&info);
  info.restart_in_rows = kind.restart_rows;
  jpeg_start_compress(&info, TRUE);
  write_rows(info, kind);
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::vector<uint8_t> result(buffer, buffer + bytes);
  std::free(buffer);
  return result;
}

}  // namespace tritonstack::image
