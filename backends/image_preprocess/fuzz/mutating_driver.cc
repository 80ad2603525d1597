// Feeds mutated pictures to the fuzz target: decode_fuzzer SEEDS_FOLDER RUNS [FIRST_RUN]
//
// Every run is made from its number alone, so a failing one is found again with `decode_fuzzer FOLDER 1 NUMBER`.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "png_checksums.h"

using tritonstack::image::is_png;
using tritonstack::image::mend_png;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Of the sanitizers' runtime, where one is linked.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::vector<uint8_t>;

volatile uint64_t current_run = 0;

void tell_run() {
  std::fprintf(stderr, "\nended in run %llu\n", static_cast<unsigned long long>(current_run));
}

void tell_run_and_end(int signal) {
  tell_run();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

constexpr uint8_t kInteresting[] = {0x00, 0x01, 0x7F, 0x80, 0xC0, 0xC2, 0xC4, 0xD9, 0xDA, 0xDD, 0xE1, 0xFE, 0xFF};

std::vector<Input> read_seeds(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (seeds.back().empty()) seeds.pop_back();
  }
  return seeds;
}

class Mutator {
 public:
  Mutator(const std::vector<Input>& seeds, uint64_t run) : seeds_(seeds), random_(run * 2654435761U + 1) {}

  Input make() {
    Input input = seeds_[below(seeds_.size())];
    const size_t changes = 1 + below(6);
    for (size_t i = 0; i < changes && !input.empty(); ++i) change(input);
    const bool png = is_png(input.data(), input.size());
    if (png && below(8) != 0) mend_png(input.data(), input.size());
    input.insert(input.begin(), static_cast<uint8_t>(random_()));
    return input;
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }

  // Headers are a small part of a picture, yet most of the decisions: half of the places are near the start.
  size_t place(const Input& input) {
    return below(2) == 0 ? below(std::min<size_t>(input.size(), 200)) : below(input.size());
  }

  void change(Input& input) {
    const size_t at = place(input);
    const size_t length = std::min(input.size() - at, 1 + below(below(4) == 0 ? 64 : 4));
    const auto begin = input.begin() + static_cast<ptrdiff_t>(at);
    const auto end = begin + static_cast<ptrdiff_t>(length);
    switch (below(8)) {
      case 0:
        input[at] = static_cast<uint8_t>(input[at] ^ (1U << below(8)));
        return;
      case 1:
        input[at] = static_cast<uint8_t>(random_());
        return;
      case 2:
        input[at] = kInteresting[below(std::size(kInteresting))];
        return;
      case 3:
        input[at] = static_cast<uint8_t>(input[at] + (below(2) == 0 ? 1 : 255));
        return;
      case 4:
        input.erase(begin, end);
        return;
      case 5: {
        const Input copy(begin, end);
        input.insert(input.begin() + static_cast<ptrdiff_t>(place(input)), copy.begin(), copy.end());
        return;
      }
      case 6:
        input.resize(at);
        return;
      default: {
        const Input& other = seeds_[below(seeds_.size())];
        const size_t from = below(other.size());
        const size_t count = std::min({length * 8, other.size() - from, input.size() - at});
        std::copy_n(other.begin() + static_cast<ptrdiff_t>(from), count, begin);
        return;
      }
    }
  }

  const std::vector<Input>& seeds_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s SEEDS_FOLDER RUNS [FIRST_RUN]\n", argv[0]);
    return 2;
  }
  const std::vector<Input> seeds = read_seeds(argv[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds in %s\n", argv[1]);
    return 2;
  }
  const uint64_t runs = std::strtoull(argv[2], nullptr, 10);
  const uint64_t first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(tell_run);
  } else {
    for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS}) std::signal(signal, tell_run_and_end);
  }
  for (uint64_t run = first; run < first + runs; ++run) {
    const Input input = Mutator(seeds, run).make();
    current_run = run;
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu inputs from %zu seeds\n", static_cast<unsigned long long>(runs), seeds.size());
  return 0;
}
