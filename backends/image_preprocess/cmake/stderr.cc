// Debian compiles its static archives for executables: their code may name data of this library, but not of the C
// library, and libpng and libjpeg name `stderr` in handlers that we replace. This gives the library one of its own,
// hidden.
#include <dlfcn.h>

extern "C" {
__attribute__((visibility("hidden"))) void* stderr = nullptr;
}

namespace {

__attribute__((constructor)) void find_stderr() {
  if (void* const place = dlsym(RTLD_DEFAULT, "stderr")) stderr = *static_cast<void**>(place);
}

}  // namespace
