// nvJPEG, opened when a GPU instance needs it: neither its header nor its library is needed to build or to serve on CPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace tritonstack::image::nvjpeg {

// The part of nvJPEG's C interface that is used, as versions 11 to 13 have it. Enumerations are passed as int.
struct Handle_;
struct State_;
struct Stream_;
struct Params_;
struct Decoder_;
struct Pinned_;
struct Device_;
using Handle = Handle_*;
using State = State_*;
using JpegStream = Stream_*;
using Params = Params_*;
using Decoder = Decoder_*;
using Pinned = Pinned_*;
using Device = Device_*;

struct Image {
  std::array<unsigned char*, 4> channel;
  std::array<size_t, 4> pitch;
};

using Status = int;
constexpr Status kSuccess = 0;
constexpr int kHybrid = 1;
constexpr int kGpuHybrid = 2;
constexpr int kHardware = 3;
constexpr int kInterleavedRgb = 5;
constexpr unsigned kInterpolatedUpsampling = 1U << 5;

struct Functions {
  Status (*CreateEx)(int backend, void* device_allocator, void* pinned_allocator, unsigned flags, Handle*);
  Status (*Destroy)(Handle);
  Status (*GetHardwareDecoderInfo)(Handle, unsigned* engines, unsigned* cores_per_engine);
  Status (*JpegStateCreate)(Handle, State*);
  Status (*JpegStateDestroy)(State);
  Status (*DecodeBatchedInitialize)(Handle, State, int batch, int cpu_threads, int format);
  Status (*DecodeBatched)(Handle, State, const unsigned char* const* data, const size_t* lengths, Image*, cudaStream_t);
  Status (*JpegStreamCreate)(Handle, JpegStream*);
  Status (*JpegStreamDestroy)(JpegStream);
  Status (*JpegStreamParse)(Handle, const unsigned char* data, size_t length, int save_metadata, int save_stream,
                            JpegStream);
  Status (*DecodeParamsCreate)(Handle, Params*);
  Status (*DecodeParamsDestroy)(Params);
  Status (*DecodeParamsSetOutputFormat)(Params, int format);
  Status (*DecoderCreate)(Handle, int backend, Decoder*);
  Status (*DecoderDestroy)(Decoder);
  Status (*DecoderStateCreate)(Handle, Decoder, State*);
  Status (*BufferPinnedCreate)(Handle, void* allocator, Pinned*);
  Status (*BufferPinnedDestroy)(Pinned);
  Status (*BufferDeviceCreate)(Handle, void* allocator, Device*);
  Status (*BufferDeviceDestroy)(Device);
  Status (*StateAttachPinnedBuffer)(State, Pinned);
  Status (*StateAttachDeviceBuffer)(State, Device);
  Status (*DecodeJpegHost)(Handle, Decoder, State, Params, JpegStream);
  Status (*DecodeJpegTransferToDevice)(Handle, Decoder, State, JpegStream, cudaStream_t);
  Status (*DecodeJpegDevice)(Handle, Decoder, State, Image*, cudaStream_t);
};

// Stays open for the life of the process: nvJPEG keeps threads and device memory that outlive its handles.
class Library {
 public:
  // `place`: the library or its folder; empty: beside this library, then where the loader looks. Null where none is
  // found, with the loader's reasons in `reason`.
  static std::shared_ptr<const Library> open(const std::string& place, std::string& reason);

  const Functions& call() const { return functions_; }
  const std::string& path() const { return path_; }

 private:
  Functions functions_{};
  std::string path_;
};

// Owner of one of nvJPEG's objects. `Destroy` names the function that frees it.
template <typename Object, Status (*Functions::*Destroy)(Object)>
class Owned {
 public:
  explicit Owned(std::shared_ptr<const Library> library) : library_(std::move(library)) {}
  Owned(Owned&& other) noexcept : library_(std::move(other.library_)), object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (object_ != nullptr) {
      static_cast<void>((library_->call().*Destroy)(object_));
    }
  }

  Object get() const { return object_; }
  Object* out() { return &object_; }

 private:
  std::shared_ptr<const Library> library_;
  Object object_ = nullptr;
};

using OwnedHandle = Owned<Handle, &Functions::Destroy>;
using OwnedState = Owned<State, &Functions::JpegStateDestroy>;
using OwnedJpegStream = Owned<JpegStream, &Functions::JpegStreamDestroy>;
using OwnedParams = Owned<Params, &Functions::DecodeParamsDestroy>;
using OwnedDecoder = Owned<Decoder, &Functions::DecoderDestroy>;
using OwnedPinned = Owned<Pinned, &Functions::BufferPinnedDestroy>;
using OwnedDevice = Owned<Device, &Functions::BufferDeviceDestroy>;

const char* status_text(Status status);

}  // namespace tritonstack::image::nvjpeg
