// What the backend does to a picture: the validated settings of one model.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/image.h"

namespace tritonstack::image {

enum class ResizeMode { none, exact, shorter, letterbox };
enum class Interpolation { bilinear, bicubic, nearest };
enum class ChannelOrder { rgb, bgr };
enum class Layout { nchw, nhwc };
enum class ElementType { u8, f16, bf16, f32 };
enum class GrayPolicy { replicate, refuse };
enum class CmykPolicy { convert, refuse };
enum class AlphaPolicy { drop, refuse };

size_t byte_size(ElementType type);

// The parameters of config.pbtxt by name.
using Settings = std::map<std::string, std::string>;

// In this order: decode; orient by EXIF; 8-bit RGB; crop_fraction; resize; center_crop; channel order;
// value = (pixel · scale − mean) / std in float32, one operation after the other; layout; element type.
//
// round_u8: the pixel after the resize is 8-bit. With antialias it is what Pillow computes, bit for bit (22-bit fixed
// point, rounded to 8 bits between the passes, the horizontal one first unless vertical_first() of filter.h says
// otherwise); without, the float result of both passes, rounded half to even. Not round_u8: the float result of both
// passes. Either way clamped to 0 … 255.
struct Operation {
  ResizeMode resize = ResizeMode::none;
  Size target;  // height alone counts for `shorter`
  uint8_t pad_value = 0;
  std::optional<double> crop_fraction;
  std::optional<Size> center_crop;
  Interpolation interpolation = Interpolation::bilinear;
  bool antialias = true;
  bool round_u8 = true;
  ChannelOrder channel_order = ChannelOrder::rgb;
  float scale = 1.0F;
  std::array<float, 3> mean{0.0F, 0.0F, 0.0F};  // in `channel_order`
  std::array<float, 3> std{1.0F, 1.0F, 1.0F};
  Layout layout = Layout::nchw;
  ElementType element = ElementType::f32;
  bool exif = true;
  GrayPolicy gray = GrayPolicy::replicate;
  CmykPolicy cmyk = CmykPolicy::convert;
  AlphaPolicy alpha = AlphaPolicy::drop;
  int64_t max_pixels = 100'000'000;
  int64_t max_bytes = 67'108'864;
  int threads = 1;  // of a CPU instance; 0: all cores
  std::optional<int> decode_threads;  // of a GPU instance; 0: all cores; none: its share of them
  bool fail_without_gpu_output = false;
};

// The largest side a picture is brought to.
constexpr int kMaxSide = 16384;

// Reads and checks all settings. Unknown names are left to the caller (`is_setting` tells).
// Raises ConfigError naming the parameter, what was given and what is expected.
Operation parse_operation(const Settings& settings, ElementType element);

bool is_setting(const std::string& name);

// Every name of the table, separated by commas, for messages.
std::string setting_names();

// The size of every sample, or nothing where it depends on the picture.
std::optional<Size> fixed_output_size(const Operation& operation);

// Bytes of one sample of `output` pixels.
size_t sample_bytes(const Operation& operation, Size output);

}  // namespace tritonstack::image
