// The core behind a C interface, for languages that load a library by name: PyTorch's custom op uses it.
//
// Functions that can fail return null or -1 and write the reason, at most `error_size` bytes with the final 0, to
// `error`. No exception leaves them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSIMAGE_VERSION 1

typedef struct tsimage_processor tsimage_processor;

// Types of the output's elements.
enum { TSIMAGE_U8 = 0, TSIMAGE_F16 = 1, TSIMAGE_BF16 = 2, TSIMAGE_F32 = 3 };

// One picture: 8-bit RGB pixels, three bytes each, rows `row_bytes` apart, and where its sample goes. Both lie in host
// memory where their device is -1, else in the memory of that GPU.
typedef struct {
  const uint8_t* pixels;
  int32_t height;
  int32_t width;
  size_t row_bytes;
  int32_t pixels_device;
  int32_t output_device;
  void* output;
} tsimage_picture;

int32_t tsimage_version(void);

// Whether the library was built with its GPU part.
int32_t tsimage_has_gpu(void);

// `names` and `values` are `count` parameters as in a model's config.pbtxt; `element` is one of the types above;
// `device` is -1 for the CPU. A processor is not for several threads at once.
tsimage_processor* tsimage_new(const char* const* names, const char* const* values, size_t count, int32_t element,
                               int32_t device, char* error, size_t error_size);
void tsimage_delete(tsimage_processor* processor);

// Height and width of the sample of a picture of that size.
int32_t tsimage_output_size(const tsimage_processor* processor, int32_t height, int32_t width, int32_t* output_height,
                            int32_t* output_width, char* error, size_t error_size);

// Processes all pictures; on return nothing reads or writes their memory any more. The first failure is reported.
int32_t tsimage_run(tsimage_processor* processor, const tsimage_picture* pictures, size_t count, char* error,
                    size_t error_size);

#ifdef __cplusplus
}
#endif
