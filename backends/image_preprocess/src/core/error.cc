#include "core/error.h"

namespace tritonstack::image {

const char* name_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::empty:
      return "empty";
    case FailureKind::format:
      return "format";
    case FailureKind::damaged:
      return "damaged";
    case FailureKind::too_large:
      return "too_large";
    case FailureKind::policy:
      return "policy";
    case FailureKind::geometry:
      return "geometry";
    case FailureKind::input:
      return "input";
    case FailureKind::internal:
      break;
  }
  return "internal";
}

}  // namespace tritonstack::image
