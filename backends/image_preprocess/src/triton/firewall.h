// The one place where exceptions become Triton's errors: none may leave a C function, or the server is gone.
#pragma once

#include <exception>
#include <new>

#include "core/error.h"
#include "triton/owners.h"

namespace tritonstack::image {

template <typename Body>
TRITONSERVER_Error* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const TritonError& error) {
    return TRITONSERVER_ErrorNew(error.code(), error.what());
  } catch (const ConfigError& error) {
    return TRITONSERVER_ErrorNew(kTritonInvalidArg, error.what());
  } catch (const ImageError& error) {
    return TRITONSERVER_ErrorNew(kTritonInvalidArg, error.what());
  } catch (const std::bad_alloc&) {
    return TRITONSERVER_ErrorNew(kTritonUnavailable, "image_preprocess: out of memory");
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(kTritonInternal, error.what());
  } catch (...) {
    return TRITONSERVER_ErrorNew(kTritonInternal, "image_preprocess: an exception of unknown type");
  }
}

}  // namespace tritonstack::image
