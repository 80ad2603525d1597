// Owners of CUDA streams, events and memory. Every one is move-only and belongs to the device current at creation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace tritonstack::image {

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    // Otherwise the next launch would report this error as its own.
    static_cast<void>(cudaGetLastError());
    throw CudaError(std::string(what) + ": " + cudaGetErrorString(status));
  }
}

// Own streams never wait for the legacy default stream, which other models of the server may use.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream() {
    if (stream_ != nullptr) {
      static_cast<void>(cudaStreamDestroy(stream_));
    }
  }

  cudaStream_t get() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "the GPU failed while it worked on the batch"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(bool timed = false) {
    check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) {
      static_cast<void>(cudaEventDestroy(event_));
    }
  }

  void record(const Stream& stream) const { check(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }
  void make_wait(const Stream& stream) const {
    check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent");
  }
  void synchronize() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  double milliseconds_since(const Event& begin) const {
    float elapsed = 0.0F;
    check(cudaEventElapsedTime(&elapsed, begin.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(elapsed);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory that grows and never shrinks on its own. What it held is lost when it grows; nothing may still use it then.
template <cudaError_t (*Allocate)(void**, size_t), cudaError_t (*Free)(void*)>
class GrowingBuffer {
 public:
  GrowingBuffer() = default;
  GrowingBuffer(GrowingBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  GrowingBuffer& operator=(GrowingBuffer&&) = delete;
  ~GrowingBuffer() { release(); }

  // At least `bytes`, aligned to 256.
  uint8_t* reserve(size_t bytes) {
    if (bytes > size_) {
      release();
      // A quarter more, so that slowly growing pictures do not cost an allocation each.
      const size_t wanted = bytes + bytes / 4 + 4096;
      check(Allocate(&data_, wanted), "memory for the scratch buffers of the GPU");
      size_ = wanted;
    }
    return static_cast<uint8_t*>(data_);
  }

  size_t size() const { return size_; }

  void release() {
    if (data_ != nullptr) {
      static_cast<void>(Free(data_));
      data_ = nullptr;
      size_ = 0;
    }
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

inline cudaError_t allocate_pinned(void** data, size_t bytes) { return cudaHostAlloc(data, bytes, cudaHostAllocDefault); }
inline cudaError_t allocate_device(void** data, size_t bytes) { return cudaMalloc(data, bytes); }

using DeviceBuffer = GrowingBuffer<allocate_device, cudaFree>;
using PinnedBuffer = GrowingBuffer<allocate_pinned, cudaFreeHost>;

}  // namespace tritonstack::image
