// Move-only owners for Triton's handles, and its errors as exceptions.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "triton/abi.h"

namespace tritonstack::image {

// What a call into Triton answered, or what is to be answered to it.
class TritonError : public std::runtime_error {
 public:
  TritonError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

struct ErrorDeleter {
  void operator()(TRITONSERVER_Error* error) const { TRITONSERVER_ErrorDelete(error); }
};
using ErrorOwner = std::unique_ptr<TRITONSERVER_Error, ErrorDeleter>;

// Throws what a call returned.
inline void check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const ErrorOwner owner(error);
  throw TritonError(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
}

// For calls whose failure can change nothing any more.
inline void ignore(TRITONSERVER_Error* error) {
  const ErrorOwner owner(error);
}

struct MessageDeleter {
  void operator()(TRITONSERVER_Message* message) const { ignore(TRITONSERVER_MessageDelete(message)); }
};
using MessageOwner = std::unique_ptr<TRITONSERVER_Message, MessageDeleter>;

// A response not sent yet; `release()` when it goes to ResponseSend, which takes it.
struct ResponseDeleter {
  void operator()(TRITONBACKEND_Response* response) const { ignore(TRITONBACKEND_ResponseDelete(response)); }
};
using ResponseOwner = std::unique_ptr<TRITONBACKEND_Response, ResponseDeleter>;

inline std::string json_of(TRITONSERVER_Message* message) {
  const char* base = nullptr;
  size_t bytes = 0;
  check(TRITONSERVER_MessageSerializeToJson(message, &base, &bytes));
  return std::string(base, bytes);
}

inline void log(TritonLogLevel level, const std::string& message) {
  ignore(TRITONSERVER_LogMessage(level, "image_preprocess", 0, message.c_str()));
}

}  // namespace tritonstack::image
