// Runs batches on a GPU: decode, one resampling launch for all pictures, copies where outputs are not on the device.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "core/decode.h"
#include "core/filter.h"
#include "core/gpu.h"
#include "core/normalise.h"
#include "core/thread_pool.h"
#include "gpu/cuda_handles.h"
#include "gpu/gpu_executor.h"
#include "gpu/jpeg_decoder.h"
#include "gpu/kernels.h"
#include "gpu/tap_tables.h"
#include "gpu/trace.h"

namespace tritonstack::image {

namespace {

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t pitch_of(int width) { return (static_cast<size_t>(width) * kChannels + 63) / 64 * 64; }

// What the kernel may read behind a picture without looking: the words of a strip beyond its last pixel.
constexpr size_t kSlack = 64;

}  // namespace

GpuExecutor::GpuExecutor(const Operation& operation, const GpuOptions& options, const DecodePolicy& policy)
    : operation_(operation),
      exact_(is_exact(operation)),
      fused_(fused_operation(operation)),
      device_(options.device),
      pool_(options.decode_threads),
      plan_(fused_, exact_),
      short_plan_(fused_),
      scratch_(static_cast<size_t>(pool_.size())),
      decoded_(static_cast<size_t>(pool_.size())) {
  std::string reason;
  if (const auto library = nvjpeg::Library::open(options.nvjpeg_path, reason)) {
    decoder_ = std::make_unique<JpegDecoder>(library, policy, pool_.size());
    decoder_description_ = library->path() + ", " + std::to_string(decoder_->hardware_cores()) + " hardware cores";
  } else if (!options.nvjpeg_path.empty()) {
    throw ConfigError("nvjpeg_path holds no usable nvJPEG; given '" + options.nvjpeg_path + "'; " + reason);
  } else {
    decoder_description_ = "libjpeg on the CPU, since nvJPEG was not found (" + reason + ")";
  }
  upload_table();
}

// The elements that the 256 pixel values become come from the host, so that both kinds of instance agree in every bit.
void GpuExecutor::upload_table() {
  constexpr int kValues = 256;
  Operation operation = operation_;
  operation.layout = Layout::nchw;
  Geometry geometry;
  geometry.source = geometry.resized = geometry.output = {1, kValues};
  geometry.source_crop = {0, 0, 1, kValues};
  std::array<uint8_t, kValues * kChannels> grays{};
  for (size_t i = 0; i < grays.size(); ++i) grays[i] = static_cast<uint8_t>(i / kChannels);
  std::vector<uint8_t> elements(sample_bytes(operation, geometry.output));
  Normaliser(operation).write(geometry, grays.data(), grays.size(), elements.data());

  constexpr size_t kBytes = grays.size() * sizeof(uint32_t);
  uint8_t* staging = staging_.reserve(kBytes);
  std::memset(staging, 0, kBytes);
  const size_t width = byte_size(operation.element);
  for (size_t i = 0; i < grays.size(); ++i) std::memcpy(staging + i * sizeof(uint32_t), &elements[i * width], width);
  uint8_t* on_device = table_.reserve(kBytes);
  check(cudaMemcpyAsync(on_device, staging, kBytes, cudaMemcpyHostToDevice, stream_.get()),
        "copy of the table of values");
  stream_.synchronize();
  fused_.table = reinterpret_cast<const uint32_t*>(on_device);
}

void GpuExecutor::run(ImageJob* jobs, size_t count) {
  check(cudaSetDevice(device_), "cudaSetDevice");
  const Settled settled(stream_);
  // Groups keep the memory for decoded pixels within bounds, whatever the batch holds.
  for (size_t begin = 0; begin < count;) {
    size_t end = begin;
    for (size_t bytes = 0; end < count; ++end) {
      const ImageJob& job = jobs[end];
      const Size size = job.encoded.data == nullptr ? job.raw.size : job.header.stored;
      const size_t more = 2 * static_cast<size_t>(size.height) * pitch_of(size.width);
      if (end > begin && bytes + more > kGroupBytes) break;
      bytes += more;
    }
    run_group(jobs + begin, end - begin);
    begin = end;
  }
}

void GpuExecutor::run_group(ImageJob* jobs, size_t count) {
  sources_.assign(count, {});
  lay_out_pixels(jobs, count);
  {
    const Range range("decode");
    decode(jobs, count);
  }
  const Range range("resize");
  images_.clear();
  active_.clear();
  size_t output_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (jobs[i].failure) continue;
    // Clients choose the place of an output in CUDA shared memory to the byte; kernels write whole elements.
    const bool direct = jobs[i].output_place.memory == Memory::gpu && jobs[i].output_place.device == device_ &&
                        reinterpret_cast<uintptr_t>(jobs[i].output) % byte_size(operation_.element) == 0;
    sources_[i].output_offset = output_bytes;
    sources_[i].direct = direct;
    if (!direct) output_bytes += aligned(sample_bytes(operation_, jobs[i].geometry.output));
    active_.push_back(i);
  }
  if (active_.empty()) return;
  uint8_t* outputs = outputs_.reserve(output_bytes);
  for (const size_t i : active_) {
    images_.push_back(describe_image(jobs[i], sources_[i]));
    images_.back().output = sources_[i].direct ? jobs[i].output : outputs + sources_[i].output_offset;
  }
  launch(jobs);

  const Range copy("copy");
  for (const size_t i : active_) {
    if (sources_[i].direct) continue;
    check(cudaMemcpyAsync(jobs[i].output, outputs + sources_[i].output_offset,
                          sample_bytes(operation_, jobs[i].geometry.output), cudaMemcpyDefault, stream_.get()),
          "copy of an output from the GPU");
  }
  stream_.synchronize();
}

void GpuExecutor::lay_out_pixels(ImageJob* jobs, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (jobs[i].failure) continue;
    Source& source = sources_[i];
    ImageJob& job = jobs[i];
    const bool encoded = job.encoded.data != nullptr;
    const JpegKind kind = encoded && decoder_ != nullptr ? kind_of_jpeg(job.encoded, job.header) : JpegKind::libjpeg;
    source.kind = kind;
    source.place = !encoded && job.raw_place.memory == Memory::gpu && job.raw_place.device == device_ ? Place::borrowed
                   : kind != JpegKind::libjpeg ? Place::gpu_decode
                                               : Place::upload;
    if (source.place == Place::borrowed) continue;
    source.region = needed_source(operation_, job.geometry);
    if (source.place == Place::gpu_decode) {
      const Size stored = job.header.stored;
      source.offset = bytes;
      bytes += aligned(static_cast<size_t>(stored.height) * pitch_of(stored.width) + kSlack);
    }
    // Upright pixels: uploaded ones, and the turned copy of decoded ones. Where nvJPEG fails it serves the CPU's pixels.
    source.upright_offset = bytes;
    const Size upright = job.geometry.source;
    const bool turned = source.place == Place::gpu_decode && job.header.orientation != 1;
    const Size kept = turned ? upright : Size{source.region.height, source.region.width};
    bytes += aligned(static_cast<size_t>(kept.height) * pitch_of(kept.width) + kSlack);
  }
  pixels_.reserve(bytes);
}

void GpuExecutor::decode(ImageJob* jobs, size_t count) {
  uint8_t* pixels = pixels_.reserve(0);
  tasks_.clear();
  task_jobs_.clear();
  for (size_t i = 0; i < count; ++i) {
    if (jobs[i].failure || sources_[i].place != Place::gpu_decode) continue;
    const Size stored = jobs[i].header.stored;
    tasks_.push_back({jobs[i].encoded, sources_[i].kind, stored, pixels + sources_[i].offset, pitch_of(stored.width),
                      DecodePath::none});
    task_jobs_.push_back(i);
  }
  if (!tasks_.empty()) decoder_->decode(tasks_, pool_, device_);
  for (size_t t = 0; t < tasks_.size(); ++t) {
    ImageJob& job = jobs[task_jobs_[t]];
    Source& source = sources_[task_jobs_[t]];
    job.path = tasks_[t].path;
    if (job.path == DecodePath::none) {
      source.place = Place::upload;
      continue;
    }
    const Size stored = job.header.stored;
    source.view = {tasks_[t].pixels, stored, tasks_[t].pitch};
    if (job.header.orientation != 1) {
      uint8_t* upright = pixels + source.upright_offset;
      const size_t pitch = pitch_of(job.geometry.source.width);
      launch_orient(job.header.orientation, tasks_[t].pixels, stored, tasks_[t].pitch, upright, pitch, stream_.get());
      source.view = {upright, job.geometry.source, pitch};
    }
    source.region = {0, 0, source.view.size.height, source.view.size.width};
  }
  upload(jobs, count);
}

void GpuExecutor::upload(ImageJob* jobs, size_t count) {
  uploads_.clear();
  for (size_t i = 0; i < count; ++i) {
    if (!jobs[i].failure && sources_[i].place == Place::upload) uploads_.push_back(i);
    if (!jobs[i].failure && sources_[i].place == Place::borrowed) {
      sources_[i].view = jobs[i].raw;
      sources_[i].region = {0, 0, jobs[i].raw.size.height, jobs[i].raw.size.width};
      jobs[i].path = DecodePath::raw;
    }
  }
  uint8_t* pixels = pixels_.reserve(0);
  pool_.for_each(uploads_.size(), [&](size_t index, size_t worker) {
    ImageJob& job = jobs[uploads_[index]];
    Source& source = sources_[uploads_[index]];
    try {
      check(cudaSetDevice(device_), "cudaSetDevice");
      const size_t pitch = pitch_of(source.region.width);
      PixelView view = job.raw;
      if (job.encoded.data != nullptr) {
        tritonstack::image::decode(job.encoded, job.header, source.region, decoded_[worker],
                                   scratch_[worker]);
        view = decoded_[worker].view();
      } else {
        view.data = job.raw.at(source.region.top, source.region.left);
      }
      source.view = {pixels + source.upright_offset, {source.region.height, source.region.width}, pitch};
      check(cudaMemcpy2DAsync(pixels + source.upright_offset, pitch, view.data, view.row_bytes,
                              static_cast<size_t>(source.region.width) * kChannels,
                              static_cast<size_t>(source.region.height), cudaMemcpyDefault, stream_.get()),
            "copy of pixels to the GPU");
      if (job.encoded.data != nullptr) {
        // The worker's buffer is filled again for its next picture.
        stream_.synchronize();
        job.path = job.header.format == Format::jpeg  ? DecodePath::cpu_jpeg
                   : job.header.format == Format::png ? DecodePath::cpu_png
                                                      : DecodePath::cpu_webp;
      } else {
        job.path = DecodePath::raw;
      }
    } catch (const ImageError& error) {
      job.failure = Failure{error.kind(), error.what()};
    } catch (const std::exception& error) {
      job.failure = Failure{FailureKind::internal, error.what()};
    }
  });
}

FusedImage GpuExecutor::describe_image(const ImageJob& job, const Source& source) const {
  const Geometry& geometry = job.geometry;
  const PixelView& view = source.view;
  const bool borrowed = source.place == Place::borrowed;
  FusedImage image{};
  // May point outside of the view; only what the crop needs is read, and that is inside.
  image.source = view.data + (geometry.source_crop.top - source.region.top) * static_cast<int64_t>(view.row_bytes) +
                 static_cast<int64_t>(geometry.source_crop.left - source.region.left) * kChannels;
  image.begin = view.data;
  image.end = view.data + static_cast<size_t>(view.size.height - 1) * view.row_bytes +
              static_cast<size_t>(view.size.width) * kChannels + (borrowed ? 0 : kSlack);
  image.pitch = static_cast<int64_t>(view.row_bytes);
  image.in_height = geometry.source_crop.height;
  image.in_width = geometry.source_crop.width;
  image.resized_height = geometry.resized.height;
  image.resized_width = geometry.resized.width;
  image.vertical_first = vertical_first({geometry.source_crop.height, geometry.source_crop.width}, geometry.resized);
  image.top = geometry.top;
  image.left = geometry.left;
  image.out_height = geometry.output.height;
  image.out_width = geometry.output.width;
  const Rect covered = geometry.covered();
  image.covered_top = covered.top;
  image.covered_left = covered.left;
  image.covered_bottom = covered.top + covered.height;
  image.covered_right = covered.left + covered.width;
  return image;
}

void GpuExecutor::launch(const ImageJob* jobs) {
  lay_out_tiles();
  const size_t tile_offset = aligned(images_.size() * sizeof(FusedImage));
  const size_t taps_offset = tile_offset + aligned(plan_.tiles().size() * sizeof(Tile));
  if (exact_) {
    taps_.clear();
    for (size_t n = 0; n < images_.size(); ++n) {
      const Geometry& geometry = jobs[active_[n]].geometry;
      const Rect covered = geometry.covered();
      taps_.add(operation_, geometry.source_crop.height, geometry.resized.height, covered.top - geometry.top,
                covered.height);
      taps_.add(operation_, geometry.source_crop.width, geometry.resized.width, covered.left - geometry.left,
                covered.width);
    }
  }
  const size_t bytes = taps_offset + (exact_ ? taps_.bytes() : short_plan_.table_bytes());
  uint8_t* on_device = descriptions_.reserve(bytes);
  uint8_t* staging = staging_.reserve(bytes);
  if (exact_) {
    taps_.write(staging + taps_offset);
    for (size_t n = 0; n < images_.size(); ++n) {
      images_[n].rows = taps_.at(2 * n, on_device + taps_offset);
      images_[n].columns = taps_.at(2 * n + 1, on_device + taps_offset);
    }
  }
  short_plan_.write_tables(staging + taps_offset);
  for (size_t n = 0; n < in_short_form_; ++n) short_plan_.place(images_[n], on_device + taps_offset);
  std::memcpy(staging, images_.data(), images_.size() * sizeof(FusedImage));
  std::memcpy(staging + tile_offset, plan_.tiles().data(), plan_.tiles().size() * sizeof(Tile));
  check(cudaMemcpyAsync(on_device, staging, bytes, cudaMemcpyHostToDevice, stream_.get()),
        "copy of the description of a batch");
  launch_kernels(on_device);
}

// Which kernel does which picture: the exact one all or none, the short one all of a batch but rare pictures with windows
// wider than it can hold. Those of the short one come first in the array.
void GpuExecutor::lay_out_tiles() {
  plan_.clear();
  short_plan_.clear();
  in_short_form_ = 0;
  if (ShortPlan::serves(fused_, exact_)) {
    const auto others =
        std::stable_partition(images_.begin(), images_.end(), [&](FusedImage& image) { return short_plan_.add(image); });
    in_short_form_ = static_cast<size_t>(others - images_.begin());
  }
  plan_.prepare(images_, in_short_form_);
  for (size_t n = in_short_form_; n < images_.size(); ++n) plan_.add(images_[n], static_cast<int>(n));
}

void GpuExecutor::launch_kernels(const uint8_t* descriptions) {
  const auto* images = reinterpret_cast<const FusedImage*>(descriptions);
  const auto* tiles = reinterpret_cast<const Tile*>(descriptions + aligned(images_.size() * sizeof(FusedImage)));
  if (exact_) return launch_exact(fused_, images, tiles, plan_.tiles().size(), stream_.get());
  launch_short(fused_, images, in_short_form_, short_plan_.tiles(), short_plan_.shared_bytes(), stream_.get());
  launch_fused(fused_, images, tiles, plan_.tiles().size(), plan_.words_per_thread(), stream_.get());
}

double GpuExecutor::time_kernel(ImageJob* jobs, size_t count, int repeats) {
  check(cudaSetDevice(device_), "cudaSetDevice");
  run(jobs, count);
  const uint8_t* descriptions = descriptions_.reserve(0);
  const Event begin(true);
  const Event end(true);
  begin.record(stream_);
  for (int i = 0; i < repeats; ++i) launch_kernels(descriptions);
  end.record(stream_);
  end.synchronize();
  return end.milliseconds_since(begin);
}

std::unique_ptr<Executor> make_gpu_executor(const Operation& operation, const GpuOptions& options) {
  check(cudaSetDevice(options.device), "cudaSetDevice");
  return std::make_unique<GpuExecutor>(operation, options, DecodePolicy{});
}

namespace {

void copy(void* to, const void* from, size_t bytes, int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  const Stream stream;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "copy between CPU and GPU");
  stream.synchronize();
}

}  // namespace

void copy_to_host(void* host, const void* device_memory, size_t bytes, int device) {
  copy(host, device_memory, bytes, device);
}

void copy_from_host(void* device_memory, const void* host, size_t bytes, int device) {
  copy(device_memory, host, bytes, device);
}

}  // namespace tritonstack::image
