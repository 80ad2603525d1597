// What can go wrong in the core. Neither type knows of Triton; the firewall in src/triton gives them codes.
#pragma once

#include <stdexcept>
#include <string>

namespace tritonstack::image {

// A setting of the model is wrong: the model cannot be loaded as configured.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class FailureKind {
  empty,      // no bytes at all
  format,     // not JPEG, PNG or WebP
  damaged,    // cut off or broken
  too_large,  // beyond max_bytes or max_pixels
  policy,     // gray, CMYK or alpha where the model refuses them
  geometry,   // smaller than the crop, too narrow to be resized
  input,      // shape or element count of the tensor
  internal,   // not the picture's fault
};

// "damaged", "too_large", …: the label of the failure metric.
const char* name_of(FailureKind kind);

// One picture cannot be processed; others are unaffected.
class ImageError : public std::runtime_error {
 public:
  ImageError(FailureKind kind, const std::string& reason) : std::runtime_error(reason), kind_(kind) {}
  FailureKind kind() const { return kind_; }

 private:
  FailureKind kind_;
};

}  // namespace tritonstack::image
