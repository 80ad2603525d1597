#include "gpu/nvjpeg_library.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <vector>

namespace tritonstack::image::nvjpeg {

namespace {

// Newest first. The functions used here are the same in all of them.
constexpr std::array<const char*, 3> kNames{"libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"};

bool is_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string{} : path.substr(0, slash);
}

std::vector<std::string> candidates(const std::string& place) {
  std::vector<std::string> paths;
  const auto add_folder = [&](const std::string& folder) {
    for (const char* name : kNames) paths.push_back(folder + "/" + name);
  };
  if (!place.empty()) {
    // What was asked for and nothing else: another version in its stead would be a surprise.
    if (is_folder(place)) {
      add_folder(place);
    } else {
      paths.push_back(place);
    }
    return paths;
  }
  if (const std::string folder = own_folder(); !folder.empty()) add_folder(folder);
  for (const char* name : kNames) paths.emplace_back(name);
  return paths;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, (std::string("nvjpeg") + name).c_str()));
  return function != nullptr;
}

// The name of the first function that is missing, or null.
const char* load_functions(void* library, Functions& f) {
#define TRITONSTACK_FIND(name) \
  if (!find(library, #name, f.name)) return #name
  TRITONSTACK_FIND(CreateEx);
  TRITONSTACK_FIND(Destroy);
  TRITONSTACK_FIND(GetHardwareDecoderInfo);
  TRITONSTACK_FIND(JpegStateCreate);
  TRITONSTACK_FIND(JpegStateDestroy);
  TRITONSTACK_FIND(DecodeBatchedInitialize);
  TRITONSTACK_FIND(DecodeBatched);
  TRITONSTACK_FIND(JpegStreamCreate);
  TRITONSTACK_FIND(JpegStreamDestroy);
  TRITONSTACK_FIND(JpegStreamParse);
  TRITONSTACK_FIND(DecodeParamsCreate);
  TRITONSTACK_FIND(DecodeParamsDestroy);
  TRITONSTACK_FIND(DecodeParamsSetOutputFormat);
  TRITONSTACK_FIND(DecoderCreate);
  TRITONSTACK_FIND(DecoderDestroy);
  TRITONSTACK_FIND(DecoderStateCreate);
  TRITONSTACK_FIND(BufferPinnedCreate);
  TRITONSTACK_FIND(BufferPinnedDestroy);
  TRITONSTACK_FIND(BufferDeviceCreate);
  TRITONSTACK_FIND(BufferDeviceDestroy);
  TRITONSTACK_FIND(StateAttachPinnedBuffer);
  TRITONSTACK_FIND(StateAttachDeviceBuffer);
  TRITONSTACK_FIND(DecodeJpegHost);
  TRITONSTACK_FIND(DecodeJpegTransferToDevice);
  TRITONSTACK_FIND(DecodeJpegDevice);
#undef TRITONSTACK_FIND
  return nullptr;
}

}  // namespace

std::shared_ptr<const Library> Library::open(const std::string& place, std::string& reason) {
  for (const std::string& path : candidates(place)) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* text = dlerror();
      // The loader's first reason is the one that counts; the others are variations of a name.
      if (reason.empty() && text != nullptr) reason = text;
      continue;
    }
    auto library = std::make_shared<Library>();
    if (const char* missing = load_functions(handle, library->functions_); missing != nullptr) {
      reason = path + " has no function nvjpeg" + missing;
      static_cast<void>(dlclose(handle));
      continue;
    }
    library->path_ = path;
    return library;
  }
  return nullptr;
}

const char* status_text(Status status) {
  switch (status) {
    case 0:
      return "success";
    case 1:
      return "not initialised";
    case 2:
      return "invalid parameter";
    case 3:
      return "bad JPEG";
    case 4:
      return "JPEG of a kind that is not supported";
    case 5:
      return "out of memory";
    case 6:
      return "execution failed";
    case 7:
      return "not for this architecture";
    case 8:
      return "internal error";
    case 9:
      return "not implemented for this GPU";
    case 10:
      return "incomplete bitstream";
    default:
      return "unknown status";
  }
}

}  // namespace tritonstack::image::nvjpeg
