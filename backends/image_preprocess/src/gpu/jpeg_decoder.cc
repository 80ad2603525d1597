#include "gpu/jpeg_decoder.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace tritonstack::image {

namespace {

using nvjpeg::kSuccess;

void require(nvjpeg::Status status, const char* what) {
  if (status != kSuccess) throw std::runtime_error(std::string(what) + ": " + nvjpeg::status_text(status));
}

nvjpeg::Image destination_of(const JpegTask& task) {
  nvjpeg::Image image{};
  image.channel[0] = task.pixels;
  image.pitch[0] = task.pitch;
  return image;
}

// Indices of the tasks that are left for the threads.
class Queue {
 public:
  void add(size_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    indices_.push_back(index);
  }

  bool take(size_t& index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (indices_.empty()) return false;
    index = indices_.back();
    indices_.pop_back();
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<size_t> indices_;
};

}  // namespace

// One thread's access to the hardware engine. A call copies the streams and builds tables on the CPU before the engine
// sees them, which takes longer than the decoding where pictures are small; so several feeders share a batch, each with
// a handle and a stream.
//
// A batched state is made for one number of pictures, and making it takes long and much memory. So there are only a few
// sizes: calls are filled up with repetitions, and since the engine's cores work on one picture each, a call of their
// number or a multiple of it takes hardly longer than one of fewer.
class JpegDecoder::Feeder {
 public:
  explicit Feeder(const std::shared_ptr<const nvjpeg::Library>& library) : library_(library), handle_(library) {
    const auto& call = library->call();
    require(call.CreateEx(nvjpeg::kHardware, nullptr, nullptr, nvjpeg::kInterpolatedUpsampling, handle_.out()),
            "the JPEG engine of the GPU");
    unsigned engines = 0;
    unsigned cores = 0;
    require(call.GetHardwareDecoderInfo(handle_.get(), &engines, &cores), "the number of JPEG engines");
    cores_ = static_cast<int>(engines * cores);
    if (cores_ == 0) throw std::runtime_error("the GPU has no JPEG engine");
  }

  int cores() const { return cores_; }

  // Decodes the tasks with the given indices and waits for them; those that fail go to the queue. One bad stream fails
  // a call, and which one is not told.
  void run(std::vector<JpegTask>& tasks, const size_t* indices, size_t count, Queue& queue) {
    const size_t most = static_cast<size_t>(cores_) * kMostRounds;
    for (size_t begin = 0; begin < count; begin += most) {
      run_call(tasks, indices + begin, std::min(most, count - begin), queue);
    }
  }

 private:
  static constexpr size_t kMostRounds = 10;  // of the engine's cores in a call

  void run_call(std::vector<JpegTask>& tasks, const size_t* indices, size_t count, Queue& queue) {
    data_.clear();
    lengths_.clear();
    images_.clear();
    const JpegTask* smallest = &tasks[indices[0]];
    for (size_t i = 0; i < count; ++i) {
      const JpegTask& task = tasks[indices[i]];
      if (pixels(task.size) < pixels(smallest->size)) smallest = &task;
      data_.push_back(task.encoded.data);
      lengths_.push_back(task.encoded.size);
      images_.push_back(destination_of(task));
    }
    JpegTask repeated = *smallest;
    if (size_of_call(count) > count) {
      repeated.pixels = unused_.reserve(static_cast<size_t>(repeated.size.height) * repeated.pitch);
    }
    while (data_.size() < size_of_call(count)) {
      data_.push_back(repeated.encoded.data);
      lengths_.push_back(repeated.encoded.size);
      images_.push_back(destination_of(repeated));
    }
    const nvjpeg::State state = state_for(data_.size());
    const bool accepted =
        state != nullptr && library_->call().DecodeBatched(handle_.get(), state, data_.data(), lengths_.data(),
                                                           images_.data(), stream_.get()) == kSuccess;
    stream_.synchronize();
    for (size_t i = 0; i < count; ++i) {
      if (accepted) {
        tasks[indices[i]].path = DecodePath::gpu_hardware;
      } else {
        queue.add(indices[i]);
      }
    }
  }

  // 1, 2, 4, or a multiple of the cores.
  size_t size_of_call(size_t count) const {
    const auto cores = static_cast<size_t>(cores_);
    for (size_t size = 1; size <= 4 && size < cores; size *= 2) {
      if (count <= size) return size;
    }
    return (count + cores - 1) / cores * cores;
  }

  nvjpeg::State state_for(size_t count) {
    const auto& call = library_->call();
    auto found = states_.find(count);
    if (found == states_.end()) {
      nvjpeg::OwnedState fresh(library_);
      if (call.JpegStateCreate(handle_.get(), fresh.out()) != kSuccess ||
          call.DecodeBatchedInitialize(handle_.get(), fresh.get(), static_cast<int>(count), 1,
                                       nvjpeg::kInterleavedRgb) != kSuccess) {
        return nullptr;
      }
      found = states_.emplace(count, std::move(fresh)).first;
    }
    return found->second.get();
  }

  std::shared_ptr<const nvjpeg::Library> library_;
  nvjpeg::OwnedHandle handle_;
  Stream stream_;
  int cores_ = 0;
  std::map<size_t, nvjpeg::OwnedState> states_;  // by the number of pictures
  DeviceBuffer unused_;                          // where repetitions go
  std::vector<const unsigned char*> data_;
  std::vector<size_t> lengths_;
  std::vector<nvjpeg::Image> images_;
};

// What one thread needs to decode pictures one after the other. It has several lanes, each with buffers and a stream, so
// that the GPU works on some pictures while the CPU reads the next: the GPU's part of one picture alone fills a small
// part of the GPU and takes long.
class JpegDecoder::Worker {
 public:
  Worker(const std::shared_ptr<const nvjpeg::Library>& library, const DecodePolicy& policy)
      : library_(library), policy_(policy), handle_(library), params_(library) {
    const auto& call = library->call();
    require(call.CreateEx(nvjpeg::kHybrid, nullptr, nullptr, nvjpeg::kInterpolatedUpsampling, handle_.out()),
            "nvJPEG on this GPU");
    require(call.DecodeParamsCreate(handle_.get(), params_.out()), "parameters of nvJPEG");
    require(call.DecodeParamsSetOutputFormat(params_.get(), nvjpeg::kInterleavedRgb), "the output format of nvJPEG");
  }

  // Starts to decode a picture; false where nvJPEG does not take it.
  bool decode(const JpegTask& task) {
    const bool on_gpu = policy_.gpu_huffman_pixels > 0 && pixels(task.size) >= policy_.gpu_huffman_pixels;
    return (on_gpu && decode_with(gpu_huffman_, nvjpeg::kGpuHybrid, task)) ||
           decode_with(cpu_huffman_, nvjpeg::kHybrid, task);
  }

  // Waits for all pictures.
  void finish() const {
    for (const Lanes* lanes : {&cpu_huffman_, &gpu_huffman_}) {
      for (const auto& lane : lanes->all) lane->stream.synchronize();
    }
  }

 private:
  struct Lane {
    Lane(const std::shared_ptr<const nvjpeg::Library>& library, nvjpeg::Handle handle, int backend)
        : decoder(library), state(library), device(library), pinned(library), parser(library) {
      const auto& call = library->call();
      require(call.DecoderCreate(handle, backend, decoder.out()), "a decoder of nvJPEG");
      require(call.DecoderStateCreate(handle, decoder.get(), state.out()), "a state of nvJPEG");
      require(call.BufferDeviceCreate(handle, nullptr, device.out()), "a device buffer of nvJPEG");
      require(call.StateAttachDeviceBuffer(state.get(), device.get()), "a device buffer of nvJPEG");
      require(call.BufferPinnedCreate(handle, nullptr, pinned.out()), "a pinned buffer of nvJPEG");
      require(call.StateAttachPinnedBuffer(state.get(), pinned.get()), "a pinned buffer of nvJPEG");
      require(call.JpegStreamCreate(handle, parser.out()), "a parser of nvJPEG");
    }

    nvjpeg::OwnedDecoder decoder;
    nvjpeg::OwnedState state;
    nvjpeg::OwnedDevice device;
    nvjpeg::OwnedPinned pinned;
    nvjpeg::OwnedJpegStream parser;
    Stream stream;
  };

  struct Lanes {
    std::vector<std::unique_ptr<Lane>> all;
    size_t next = 0;
  };

  Lane& next_lane(Lanes& lanes, int backend) {
    if (lanes.all.size() < static_cast<size_t>(std::max(policy_.lanes, 1))) {
      lanes.all.push_back(std::make_unique<Lane>(library_, handle_.get(), backend));
      return *lanes.all.back();
    }
    Lane& lane = *lanes.all[lanes.next];
    lanes.next = (lanes.next + 1) % lanes.all.size();
    lane.stream.synchronize();
    return lane;
  }

  bool decode_with(Lanes& lanes, int backend, const JpegTask& task) {
    const auto& call = library_->call();
    const Lane& lane = next_lane(lanes, backend);
    nvjpeg::Image image = destination_of(task);
    const nvjpeg::Handle handle = handle_.get();
    const nvjpeg::Decoder decoder = lane.decoder.get();
    const nvjpeg::State state = lane.state.get();
    const nvjpeg::JpegStream parser = lane.parser.get();
    return call.JpegStreamParse(handle, task.encoded.data, task.encoded.size, 0, 0, parser) == kSuccess &&
           call.DecodeJpegHost(handle, decoder, state, params_.get(), parser) == kSuccess &&
           call.DecodeJpegTransferToDevice(handle, decoder, state, parser, lane.stream.get()) == kSuccess &&
           call.DecodeJpegDevice(handle, decoder, state, &image, lane.stream.get()) == kSuccess;
  }

  std::shared_ptr<const nvjpeg::Library> library_;
  DecodePolicy policy_;
  nvjpeg::OwnedHandle handle_;
  nvjpeg::OwnedParams params_;
  Lanes cpu_huffman_;
  Lanes gpu_huffman_;
};

JpegDecoder::JpegDecoder(std::shared_ptr<const nvjpeg::Library> library, const DecodePolicy& policy, int threads)
    : library_(std::move(library)), policy_(policy) {
  if (policy_.hardware) {
    try {
      for (int i = 0; i < std::clamp(policy_.feeders, 1, std::max(threads, 1)); ++i) {
        feeders_.push_back(std::make_unique<Feeder>(library_));
      }
      hardware_cores_ = feeders_.front()->cores();
    } catch (const std::runtime_error&) {
      // Most GPUs have no engine; the threads then decode everything.
      feeders_.clear();
      static_cast<void>(cudaGetLastError());
    }
  }
  for (int i = 0; i < std::max(threads, 1); ++i) {
    workers_.push_back(std::make_unique<Worker>(library_, policy_));
  }
}

JpegDecoder::~JpegDecoder() = default;

void JpegDecoder::decode(std::vector<JpegTask>& tasks, ThreadPool& pool, int device) {
  if (tasks.empty()) return;
  Queue queue;
  std::vector<size_t> fed;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!feeders_.empty() && tasks[i].kind == JpegKind::hardware) {
      fed.push_back(i);
    } else {
      queue.add(i);
    }
  }
  auto shared = static_cast<size_t>(policy_.thread_share * static_cast<double>(fed.size()));
  for (; shared > 0; --shared) {
    queue.add(fed.back());
    fed.pop_back();
  }
  const size_t least = static_cast<size_t>(std::max(policy_.least_fed, 1));
  const size_t parts = fed.empty() ? 0 : std::clamp(fed.size() / least, size_t{1}, feeders_.size());
  const size_t queued = tasks.size() - fed.size();

  pool.for_each(std::max<size_t>(std::min(parts + queued, workers_.size()), parts), [&](size_t index, size_t worker_index) {
    try {
      check(cudaSetDevice(device), "cudaSetDevice");
      if (index < parts) {
        const size_t begin = fed.size() * index / parts;
        const size_t end = fed.size() * (index + 1) / parts;
        feeders_[index]->run(tasks, fed.data() + begin, end - begin, queue);
      }
      Worker& worker = *workers_[worker_index];
      std::vector<size_t> started;
      for (size_t i = 0; queue.take(i);) {
        if (worker.decode(tasks[i])) started.push_back(i);
      }
      worker.finish();
      // A picture without a path is left to libjpeg, which says what is wrong or decodes it after all.
      for (const size_t i : started) tasks[i].path = DecodePath::gpu_hybrid;
    } catch (const std::exception&) {
      // What is not decoded now is decoded by the caller; a broken device shows there.
      static_cast<void>(cudaGetLastError());
    }
  });
}

}  // namespace tritonstack::image
