// write_jpegs FOLDER: rare JPEGs for the comparison with Pillow in tests/backends, which cannot write them itself.
#include <cstdio>
#include <fstream>
#include <string>

#include "jpeg_writer.h"

using namespace tritonstack::image;

namespace {

std::string name_of(const JpegKind& kind) {
  return std::to_string(kind.size.height) + "x" + std::to_string(kind.size.width) + "_" +
         std::to_string(kind.sampling.horizontal) + std::to_string(kind.sampling.vertical) +
         (kind.components == 3 ? ""
          : kind.ycck          ? "_ycck"
                               : "_cmyk") +
         (kind.progressive ? "_progressive" : "") + (kind.arithmetic ? "_arithmetic" : "") + ".jpg";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const auto write = [&](const JpegKind& kind) {
    const std::vector<uint8_t> bytes = make_jpeg(kind);
    std::ofstream file(std::string(argv[1]) + "/" + name_of(kind), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  for (const Size size : {Size{1, 1}, Size{37, 53}, Size{200, 331}}) {
    for (const Sampling sampling : {Sampling{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {4, 2}, {3, 1}}) {
      for (const bool progressive : {false, true}) {
        write({size, sampling, 3, progressive});
        // Pillow cannot read arithmetic coding beyond its buffer of 64 KiB.
        if (size.height < 100) write({size, sampling, 3, progressive, true});
        // No scan takes more than ten blocks at a time.
        if (2 * sampling.horizontal * sampling.vertical + 2 > 10) continue;
        write({size, sampling, 4, progressive});
        write({size, sampling, 4, progressive, false, 0, true});
      }
    }
  }
  return 0;
}
