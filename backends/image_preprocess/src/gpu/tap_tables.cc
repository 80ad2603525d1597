#include "gpu/tap_tables.h"

#include <algorithm>
#include <cstring>

namespace tritonstack::image {

namespace {

size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

size_t index_bytes(const Taps<int32_t>& taps) { return aligned(taps.first.size() * sizeof(int)); }

size_t bytes_of(const Taps<int32_t>& taps) {
  return 2 * index_bytes(taps) + aligned(taps.weights.size() * sizeof(int32_t));
}

// A nearest resampling as weights: one source pixel with weight 1, or none where Pillow paints black.
Taps<int32_t> nearest_taps(int in, int out, int begin, int count) {
  Taps<int32_t> taps;
  taps.first = nearest_sources(in, out, begin, count);
  taps.taps.assign(taps.first.size(), 1);
  taps.weights.assign(taps.first.size(), int32_t{1} << kFixedPointBits);
  taps.stride = 1;
  for (size_t i = 0; i < taps.first.size(); ++i) {
    if (taps.first[i] < 0) {
      taps.first[i] = in - 1;
      taps.taps[i] = 0;
    }
  }
  return taps;
}

}  // namespace

void TapTables::clear() {
  axes_.clear();
  used_.clear();
  bytes_ = 0;
  ++batch_;
  if (entries_.size() > kKept) {
    // Of sizes that vary without end only the latest are kept.
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      entry = entry->second->batch + 8 < batch_ ? entries_.erase(entry) : std::next(entry);
    }
  }
}

void TapTables::add(const Operation& operation, int in, int out, int begin, int count) {
  std::unique_ptr<Entry>& entry = entries_[{in, out, begin, count}];
  if (entry == nullptr) {
    auto fresh = std::make_unique<Entry>();
    fresh->taps = operation.interpolation == Interpolation::nearest
                      ? nearest_taps(in, out, begin, count)
                      : to_fixed_point(make_taps(operation.interpolation, operation.antialias, in, out, begin, count));
    entry = std::move(fresh);
  }
  if (entry->batch != batch_) {
    entry->batch = batch_;
    entry->offset = bytes_;
    bytes_ += bytes_of(entry->taps);
    used_.push_back(entry.get());
  }
  axes_.push_back(entry.get());
}

void TapTables::write(uint8_t* to) const {
  for (const Entry* entry : used_) {
    const Taps<int32_t>& taps = entry->taps;
    uint8_t* at = to + entry->offset;
    std::memcpy(at, taps.first.data(), taps.first.size() * sizeof(int));
    std::memcpy(at + index_bytes(taps), taps.taps.data(), taps.taps.size() * sizeof(int));
    std::memcpy(at + 2 * index_bytes(taps), taps.weights.data(), taps.weights.size() * sizeof(int32_t));
  }
}

DeviceTaps TapTables::at(size_t axis, const uint8_t* base) const {
  const Entry& entry = *axes_[axis];
  const uint8_t* at = base + entry.offset;
  const size_t step = index_bytes(entry.taps);
  return {reinterpret_cast<const int*>(at), reinterpret_cast<const int*>(at + step),
          reinterpret_cast<const int*>(at + 2 * step), entry.taps.stride};
}

}  // namespace tritonstack::image
