#include "core/operation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/normalise.h"

namespace tritonstack::image {
namespace {

const char* const kNames[] = {
    "resize",        "height",
    "width",         "pad_value",
    "crop_fraction", "center_crop",
    "interpolation", "antialias",
    "round_u8",      "channel_order",
    "scale",         "mean",
    "std",           "layout",
    "exif",          "gray",
    "cmyk",          "alpha",
    "max_pixels",    "max_bytes",
    "threads",       "decode_threads",
    "on_gpu_output_unavailable",
};

constexpr int kMaxThreads = 1024;

[[noreturn]] void refuse(const std::string& name, const std::string& given, const std::string& expected) {
  throw ConfigError("bad parameter '" + name + "'; given '" + given + "'; expected " + expected);
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Locale-free, the whole text or nothing.
template <typename Number>
std::optional<Number> parse_number(const std::string& text) {
  const std::string plain = trimmed(text);
  Number value{};
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc{} || end != plain.data() + plain.size() || plain.empty()) return std::nullopt;
  return value;
}

class Reader {
 public:
  explicit Reader(const Settings& settings) : settings_(settings) {}

  bool has(const std::string& name) const { return settings_.count(name) > 0; }

  template <typename Value>
  void choice(const std::string& name, Value& into, const std::vector<std::pair<const char*, Value>>& allowed) const {
    const auto entry = settings_.find(name);
    if (entry == settings_.end()) return;
    std::string expected = "one of ";
    for (const auto& [word, value] : allowed) {
      if (entry->second == word) {
        into = value;
        return;
      }
      expected += (expected == "one of " ? "" : ", ") + std::string(word);
    }
    refuse(name, entry->second, expected);
  }

  void flag(const std::string& name, bool& into) const { choice<bool>(name, into, {{"true", true}, {"false", false}}); }

  template <typename Whole>
  void whole(const std::string& name, Whole& into, int64_t least, int64_t most) const {
    const auto entry = settings_.find(name);
    if (entry == settings_.end()) return;
    const auto value = parse_number<int64_t>(entry->second);
    if (!value || *value < least || *value > most) {
      refuse(name, entry->second, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    into = static_cast<Whole>(*value);
  }

  void number(const std::string& name, float& into) const {
    const auto entry = settings_.find(name);
    if (entry == settings_.end()) return;
    const auto value = parse_number<double>(entry->second);
    if (!value || !std::isfinite(static_cast<float>(*value))) refuse(name, entry->second, "a finite number");
    into = static_cast<float>(*value);
  }

  void three_numbers(const std::string& name, std::array<float, 3>& into) const {
    const auto entry = settings_.find(name);
    if (entry == settings_.end()) return;
    size_t start = 0;
    for (size_t i = 0; i < into.size(); ++i) {
      const size_t comma = entry->second.find(',', start);
      const bool last = i + 1 == into.size();
      if ((comma == std::string::npos) != last) refuse(name, entry->second, "three numbers separated by commas");
      const auto value = parse_number<double>(entry->second.substr(start, last ? comma : comma - start));
      if (!value || !std::isfinite(static_cast<float>(*value))) {
        refuse(name, entry->second, "three finite numbers separated by commas");
      }
      into[i] = static_cast<float>(*value);
      start = comma + 1;
    }
  }

  void fraction(const std::string& name, std::optional<double>& into) const {
    const auto entry = settings_.find(name);
    if (entry == settings_.end()) return;
    const auto value = parse_number<double>(entry->second);
    if (!value || !(*value > 0) || !(*value <= 1)) refuse(name, entry->second, "a number above 0, at most 1");
    into = *value;
  }

  void size(const std::string& name, std::optional<Size>& into) const {
    const auto entry = settings_.find(name);
    if (entry == settings_.end()) return;
    const size_t by = entry->second.find('x');
    std::optional<int> height;
    std::optional<int> width;
    if (by != std::string::npos) {
      height = parse_number<int>(entry->second.substr(0, by));
      width = parse_number<int>(entry->second.substr(by + 1));
    }
    if (!height || !width || *height < 1 || *height > kMaxSide || *width < 1 || *width > kMaxSide) {
      refuse(name, entry->second,
             "HEIGHTxWIDTH in pixels, such as 224x224, each from 1 to " + std::to_string(kMaxSide));
    }
    into = Size{*height, *width};
  }

  const std::string& text(const std::string& name) const { return settings_.at(name); }

 private:
  const Settings& settings_;
};

void read_target(const Reader& reader, Operation& operation) {
  reader.choice<ResizeMode>("resize", operation.resize,
                            {{"exact", ResizeMode::exact},
                             {"shorter", ResizeMode::shorter},
                             {"letterbox", ResizeMode::letterbox},
                             {"none", ResizeMode::none}});
  reader.whole("height", operation.target.height, 1, kMaxSide);
  reader.whole("width", operation.target.width, 1, kMaxSide);
  const bool has_height = reader.has("height");
  const bool has_width = reader.has("width");
  if (operation.resize == ResizeMode::none) {
    if (has_height) refuse("height", reader.text("height"), "no height where resize is none");
    if (has_width) refuse("width", reader.text("width"), "no width where resize is none");
    return;
  }
  if (!has_height) throw ConfigError("missing parameter 'height'; expected pixels, as resize is not none");
  if (operation.resize == ResizeMode::shorter) {
    if (has_width && operation.target.width != operation.target.height) {
      refuse("width", reader.text("width"), "no width, or that of height, where resize is shorter");
    }
    operation.target.width = operation.target.height;
  } else if (!has_width) {
    throw ConfigError("missing parameter 'width'; expected pixels, as resize is exact or letterbox");
  }
}

void check_crop_fits(const Operation& operation) {
  if (!operation.center_crop || operation.resize == ResizeMode::none) return;
  const Size crop = *operation.center_crop;
  if (crop.height > operation.target.height || crop.width > operation.target.width) {
    const bool shorter = operation.resize == ResizeMode::shorter;
    refuse("center_crop", std::to_string(crop.height) + "x" + std::to_string(crop.width),
           "at most what resize leaves, " + std::to_string(operation.target.height) +
               (shorter ? " on either side" : "x" + std::to_string(operation.target.width)));
  }
}

void check_values(const Operation& operation) {
  if (operation.scale == 0.0F) refuse("scale", "0", "a number that is not 0");
  for (const float value : operation.std) {
    if (value == 0.0F) refuse("std", "0", "numbers that are not 0");
  }
  const bool plain = operation.scale == 1.0F && operation.mean == std::array<float, 3>{0, 0, 0} &&
                     operation.std == std::array<float, 3>{1, 1, 1};
  if (operation.element == ElementType::u8 && !plain) {
    throw ConfigError(
        "an output of TYPE_UINT8 carries raw pixels; given scale, mean or std; expected scale 1, mean 0 "
        "and std 1, or an output of TYPE_FP32, TYPE_FP16 or TYPE_BF16");
  }
  if (operation.element == ElementType::u8) return;
  // Values are linear in the pixel, so the extremes tell for all.
  for (int channel = 0; channel < kChannels; ++channel) {
    for (const float pixel : {0.0F, 255.0F}) {
      const float value = normalised(operation, channel, pixel);
      const bool fits =
          operation.element == ElementType::f16 ? std::isfinite(half_to_float(to_half(value))) : std::isfinite(value);
      if (!fits) {
        throw ConfigError("scale, mean and std overflow the output's type; given values up to " +
                          std::to_string(value) + "; expected below 65504 for TYPE_FP16, else finite");
      }
    }
  }
}

}  // namespace

size_t byte_size(ElementType type) {
  switch (type) {
    case ElementType::u8:
      return 1;
    case ElementType::f16:
    case ElementType::bf16:
      return 2;
    case ElementType::f32:
      break;
  }
  return 4;
}

Operation parse_operation(const Settings& settings, ElementType element) {
  const Reader reader(settings);
  Operation operation;
  operation.element = element;
  read_target(reader, operation);
  reader.whole("pad_value", operation.pad_value, 0, 255);
  reader.fraction("crop_fraction", operation.crop_fraction);
  reader.size("center_crop", operation.center_crop);
  reader.choice<Interpolation>("interpolation", operation.interpolation,
                               {{"bilinear", Interpolation::bilinear},
                                {"bicubic", Interpolation::bicubic},
                                {"nearest", Interpolation::nearest}});
  reader.flag("antialias", operation.antialias);
  reader.flag("round_u8", operation.round_u8);
  reader.choice<ChannelOrder>("channel_order", operation.channel_order,
                              {{"RGB", ChannelOrder::rgb}, {"BGR", ChannelOrder::bgr}});
  reader.number("scale", operation.scale);
  reader.three_numbers("mean", operation.mean);
  reader.three_numbers("std", operation.std);
  reader.choice<Layout>("layout", operation.layout, {{"NCHW", Layout::nchw}, {"NHWC", Layout::nhwc}});
  reader.flag("exif", operation.exif);
  reader.choice<GrayPolicy>("gray", operation.gray,
                            {{"replicate", GrayPolicy::replicate}, {"refuse", GrayPolicy::refuse}});
  reader.choice<CmykPolicy>("cmyk", operation.cmyk, {{"convert", CmykPolicy::convert}, {"refuse", CmykPolicy::refuse}});
  reader.choice<AlphaPolicy>("alpha", operation.alpha, {{"drop", AlphaPolicy::drop}, {"refuse", AlphaPolicy::refuse}});
  reader.whole("max_pixels", operation.max_pixels, 1, 1'000'000'000);
  reader.whole("max_bytes", operation.max_bytes, 1, 2'147'483'647);
  reader.whole("threads", operation.threads, 0, kMaxThreads);
  if (reader.has("decode_threads")) reader.whole("decode_threads", operation.decode_threads.emplace(), 0, kMaxThreads);
  reader.choice<bool>("on_gpu_output_unavailable", operation.fail_without_gpu_output,
                      {{"fallback", false}, {"fail", true}});
  check_crop_fits(operation);
  check_values(operation);
  return operation;
}

bool is_setting(const std::string& name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

std::string setting_names() {
  std::string names;
  for (const char* name : kNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

std::optional<Size> fixed_output_size(const Operation& operation) {
  if (operation.center_crop) return operation.center_crop;
  if (operation.resize == ResizeMode::exact || operation.resize == ResizeMode::letterbox) return operation.target;
  return std::nullopt;
}

size_t sample_bytes(const Operation& operation, Size output) {
  return static_cast<size_t>(pixels(output)) * kChannels * byte_size(operation.element);
}

}  // namespace tritonstack::image
