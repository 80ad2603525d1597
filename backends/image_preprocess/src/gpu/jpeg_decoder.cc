#include "gpu/jpeg_decoder.h"

#include <algorithm>
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

// The tasks of a batch: the hardware takes groups from the front, threads take single ones from the back, and what the
// hardware refuses comes first.
class Queue {
 public:
  explicit Queue(size_t count) : end_(count) {}

  // Up to `count` tasks from the front.
  std::pair<size_t, size_t> take_group(size_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t begin = begin_;
    begin_ = std::min(end_, begin_ + count);
    return {begin, begin_};
  }

  // False when nothing is left now; the hardware may still give back some.
  bool take_one(size_t& index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!refused_.empty()) {
      index = refused_.back();
      refused_.pop_back();
      return true;
    }
    if (begin_ == end_) return false;
    index = --end_;
    return true;
  }

  void refuse(size_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    refused_.push_back(index);
  }

 private:
  std::mutex mutex_;
  size_t begin_ = 0;
  size_t end_;
  std::vector<size_t> refused_;
};

}  // namespace

// The hardware engine. Its batched states are made for one batch size each, so they are kept by size, two of each: one
// group is prepared while the engine works on the one before.
class JpegDecoder::Hardware {
 public:
  explicit Hardware(const std::shared_ptr<const nvjpeg::Library>& library)
      : library_(library), handle_(library), parser_(library) {
    const auto& call = library->call();
    require(call.CreateEx(nvjpeg::kHardware, nullptr, nullptr, nvjpeg::kInterpolatedUpsampling, handle_.out()),
            "the JPEG engine of the GPU");
    require(call.JpegStreamCreate(handle_.get(), parser_.out()), "a parser of nvJPEG");
    unsigned engines = 0;
    unsigned cores = 0;
    require(call.GetHardwareDecoderInfo(handle_.get(), &engines, &cores), "the number of JPEG engines");
    cores_ = static_cast<int>(engines * cores);
    if (cores_ == 0) throw std::runtime_error("the GPU has no JPEG engine");
  }

  int cores() const { return cores_; }
  const Stream& stream() const { return stream_; }

  void run(std::vector<JpegTask>& tasks, Queue& queue, size_t group_size) {
    for (size_t turn = 0;; turn = 1 - turn) {
      const auto [begin, end] = queue.take_group(group_size);
      if (begin == end) break;
      group_.clear();
      for (size_t i = begin; i < end; ++i) {
        if (is_supported(tasks[i])) {
          group_.push_back(i);
        } else {
          queue.refuse(i);
        }
      }
      if (group_.empty()) continue;
      if (decode_group(tasks, turn)) {
        for (const size_t i : group_) tasks[i].path = DecodePath::gpu_hardware;
      } else {
        for (const size_t i : group_) queue.refuse(i);
      }
      // Not further ahead than one group, so that the threads get their share.
      done_[turn].record(stream_);
      done_[1 - turn].synchronize();
    }
  }

 private:
  struct BatchedState {
    nvjpeg::OwnedState state;
    size_t used = 0;
  };

  bool is_supported(const JpegTask& task) {
    const auto& call = library_->call();
    int refusal = 1;
    return call.JpegStreamParseHeader(handle_.get(), task.encoded.data, task.encoded.size, parser_.get()) == kSuccess &&
           call.DecodeBatchedSupported(handle_.get(), parser_.get(), &refusal) == kSuccess && refusal == 0;
  }

  bool decode_group(const std::vector<JpegTask>& tasks, size_t turn) {
    data_.clear();
    lengths_.clear();
    images_.clear();
    for (const size_t i : group_) {
      data_.push_back(tasks[i].encoded.data);
      lengths_.push_back(tasks[i].encoded.size);
      images_.push_back(destination_of(tasks[i]));
    }
    nvjpeg::State state = state_for(group_.size(), turn);
    return state != nullptr && library_->call().DecodeBatched(handle_.get(), state, data_.data(), lengths_.data(),
                                                              images_.data(), stream_.get()) == kSuccess;
  }

  nvjpeg::State state_for(size_t count, size_t turn) {
    const auto& call = library_->call();
    const auto key = std::make_pair(count, turn);
    auto found = states_.find(key);
    if (found == states_.end()) {
      if (states_.size() >= kKeptStates) {
        stream_.synchronize();
        states_.erase(std::min_element(states_.begin(), states_.end(), [](const auto& a, const auto& b) {
          return a.second.used < b.second.used;
        }));
      }
      BatchedState fresh{nvjpeg::OwnedState(library_)};
      if (call.JpegStateCreate(handle_.get(), fresh.state.out()) != kSuccess ||
          call.DecodeBatchedInitialize(handle_.get(), fresh.state.get(), static_cast<int>(count), 1,
                                       nvjpeg::kInterleavedRgb) != kSuccess) {
        return nullptr;
      }
      found = states_.emplace(key, std::move(fresh)).first;
    }
    found->second.used = ++clock_;
    return found->second.state.get();
  }

  static constexpr size_t kKeptStates = 40;

  std::shared_ptr<const nvjpeg::Library> library_;
  nvjpeg::OwnedHandle handle_;
  nvjpeg::OwnedJpegStream parser_;
  Stream stream_;
  Event done_[2];
  int cores_ = 0;
  size_t clock_ = 0;
  std::map<std::pair<size_t, size_t>, BatchedState> states_;
  std::vector<size_t> group_;
  std::vector<const unsigned char*> data_;
  std::vector<size_t> lengths_;
  std::vector<nvjpeg::Image> images_;
};

// What one thread needs to decode pictures one after the other. Two pinned buffers: the CPU fills one while the GPU still
// reads the other.
class JpegDecoder::Worker {
 public:
  Worker(const std::shared_ptr<const nvjpeg::Library>& library, int64_t gpu_huffman_pixels)
      : library_(library), gpu_huffman_pixels_(gpu_huffman_pixels), handle_(library), params_(library) {
    const auto& call = library->call();
    require(call.CreateEx(nvjpeg::kHybrid, nullptr, nullptr, nvjpeg::kInterpolatedUpsampling, handle_.out()),
            "nvJPEG on this GPU");
    require(call.DecodeParamsCreate(handle_.get(), params_.out()), "parameters of nvJPEG");
    require(call.DecodeParamsSetOutputFormat(params_.get(), nvjpeg::kInterleavedRgb), "the output format of nvJPEG");
    cpu_huffman_ = std::make_unique<Lane>(library, handle_.get(), nvjpeg::kHybrid);
  }

  const Stream& stream() const { return stream_; }

  // True when the picture is being decoded on `stream`.
  bool decode(JpegTask& task) {
    const bool on_gpu = gpu_huffman_pixels_ > 0 && pixels(task.size) >= gpu_huffman_pixels_;
    if (on_gpu && gpu_huffman_ == nullptr) {
      gpu_huffman_ = std::make_unique<Lane>(library_, handle_.get(), nvjpeg::kGpuHybrid);
    }
    if (on_gpu && decode_with(*gpu_huffman_, task)) return true;
    return decode_with(*cpu_huffman_, task);
  }

 private:
  struct Lane {
    Lane(const std::shared_ptr<const nvjpeg::Library>& library, nvjpeg::Handle handle, int backend)
        : decoder(library), state(library), device(library) {
      const auto& call = library->call();
      require(call.DecoderCreate(handle, backend, decoder.out()), "a decoder of nvJPEG");
      require(call.DecoderStateCreate(handle, decoder.get(), state.out()), "a state of nvJPEG");
      require(call.BufferDeviceCreate(handle, nullptr, device.out()), "a device buffer of nvJPEG");
      require(call.StateAttachDeviceBuffer(state.get(), device.get()), "a device buffer of nvJPEG");
      for (int i = 0; i < 2; ++i) {
        pinned.emplace_back(library);
        require(call.BufferPinnedCreate(handle, nullptr, pinned.back().out()), "a pinned buffer of nvJPEG");
        parsers.emplace_back(library);
        require(call.JpegStreamCreate(handle, parsers.back().out()), "a parser of nvJPEG");
      }
    }

    nvjpeg::OwnedDecoder decoder;
    nvjpeg::OwnedState state;
    nvjpeg::OwnedDevice device;
    std::vector<nvjpeg::OwnedPinned> pinned;
    std::vector<nvjpeg::OwnedJpegStream> parsers;
    Event done[2];
    size_t turn = 0;
  };

  bool decode_with(Lane& lane, const JpegTask& task) {
    const auto& call = library_->call();
    lane.turn = 1 - lane.turn;
    lane.done[lane.turn].synchronize();
    const nvjpeg::JpegStream parser = lane.parsers[lane.turn].get();
    nvjpeg::Image image = destination_of(task);
    const bool under_way =
        call.JpegStreamParse(handle_.get(), task.encoded.data, task.encoded.size, 0, 0, parser) == kSuccess &&
        call.StateAttachPinnedBuffer(lane.state.get(), lane.pinned[lane.turn].get()) == kSuccess &&
        call.DecodeJpegHost(handle_.get(), lane.decoder.get(), lane.state.get(), params_.get(), parser) == kSuccess &&
        call.DecodeJpegTransferToDevice(handle_.get(), lane.decoder.get(), lane.state.get(), parser, stream_.get()) ==
            kSuccess &&
        call.DecodeJpegDevice(handle_.get(), lane.decoder.get(), lane.state.get(), &image, stream_.get()) == kSuccess;
    lane.done[lane.turn].record(stream_);
    return under_way;
  }

  std::shared_ptr<const nvjpeg::Library> library_;
  int64_t gpu_huffman_pixels_;
  nvjpeg::OwnedHandle handle_;
  nvjpeg::OwnedParams params_;
  Stream stream_;
  std::unique_ptr<Lane> cpu_huffman_;
  std::unique_ptr<Lane> gpu_huffman_;
};

JpegDecoder::JpegDecoder(std::shared_ptr<const nvjpeg::Library> library, const DecodePolicy& policy, int threads)
    : library_(std::move(library)), policy_(policy) {
  if (policy_.hardware) {
    try {
      hardware_ = std::make_unique<Hardware>(library_);
      hardware_cores_ = hardware_->cores();
    } catch (const std::runtime_error&) {
      // Most GPUs have no engine; the threads then decode everything.
      static_cast<void>(cudaGetLastError());
    }
  }
  for (int i = 0; i < std::max(threads, 1); ++i) {
    workers_.push_back(std::make_unique<Worker>(library_, policy_.gpu_huffman_pixels));
  }
}

JpegDecoder::~JpegDecoder() = default;

void JpegDecoder::decode(std::vector<JpegTask>& tasks, ThreadPool& pool, int device, const Stream& stream) {
  if (tasks.empty()) return;
  Queue queue(tasks.size());
  const bool helped = hardware_ == nullptr || (policy_.threads_help && tasks.size() > 1);
  const auto work = [&](size_t index, size_t worker_index) {
    try {
      check(cudaSetDevice(device), "cudaSetDevice");
      if (index == 0 && hardware_ != nullptr) {
        const size_t group = policy_.threads_help ? static_cast<size_t>(policy_.hardware_batch) : tasks.size();
        hardware_->run(tasks, queue, std::max<size_t>(group, 1));
      }
      Worker& worker = *workers_[worker_index];
      for (size_t i = 0; queue.take_one(i);) {
        // A failure leaves the path at `none`: libjpeg then says what is wrong, or decodes it after all.
        if (worker.decode(tasks[i])) tasks[i].path = DecodePath::gpu_hybrid;
      }
    } catch (const std::exception&) {
      // Tasks without a path are decoded by the caller; a broken device shows there.
      static_cast<void>(cudaGetLastError());
    }
  };
  const size_t workers = std::min(workers_.size(), static_cast<size_t>(pool.size()));
  pool.for_each(helped ? std::min(workers, tasks.size()) : 1, work);

  Event event;
  if (hardware_ != nullptr) {
    event.record(hardware_->stream());
    event.make_wait(stream);
  }
  for (const auto& worker : workers_) {
    Event finished;
    finished.record(worker->stream());
    finished.make_wait(stream);
  }
}

}  // namespace tritonstack::image
