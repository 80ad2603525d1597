// Instances of a model run at the same time, each with a thread pool of its own. Under SANITIZE=thread this is where races
// would show.
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "catch.h"
#include "core/executor.h"
#include "jpeg_writer.h"

using namespace tritonstack::image;

namespace {

using Picture = std::vector<uint8_t>;

struct Answer {
  bool failed = false;
  std::vector<uint8_t> sample;
};

// One batch: every picture in the order given, or back to front.
std::vector<Answer> run_batch(Executor& executor, const Operation& operation, const std::vector<Picture>& pictures) {
  std::vector<ImageJob> jobs(pictures.size());
  std::vector<Answer> answers(pictures.size());
  for (size_t i = 0; i < pictures.size(); ++i) {
    jobs[i].encoded = {pictures[i].data(), pictures[i].size()};
    jobs[i].header = read_header(jobs[i].encoded, operation);
    jobs[i].geometry = plan_geometry(operation, jobs[i].header.oriented());
    answers[i].sample.resize(sample_bytes(operation, jobs[i].geometry.output));
    jobs[i].output = answers[i].sample.data();
  }
  executor.run(jobs.data(), jobs.size());
  for (size_t i = 0; i < pictures.size(); ++i) answers[i].failed = jobs[i].failure.has_value();
  return answers;
}

std::vector<Picture> make_pictures() {
  std::vector<Picture> pictures;
  for (const Size size : {Size{33, 47}, Size{90, 61}, Size{7, 120}, Size{128, 128}}) {
    pictures.push_back(make_jpeg({size, {2, 2}}));
    pictures.push_back(make_jpeg({size, {1, 1}, 3, true}));
    pictures.push_back(make_jpeg({size, {1, 1}, 1}));
  }
  // Cut off behind its header: it fails while the others of the batch are processed.
  Picture damaged = pictures.front();
  damaged.resize(damaged.size() * 2 / 3);
  pictures.insert(pictures.begin() + 5, damaged);
  return pictures;
}

}  // namespace

TEST_CASE("instances with thread pools answer alike at the same time") {
  const Settings settings{{"resize", "shorter"}, {"height", "40"}, {"center_crop", "32x32"}, {"threads", "3"}};
  const Operation operation = parse_operation(settings, ElementType::f32);
  Operation alone = operation;
  alone.threads = 1;
  const std::vector<Picture> pictures = make_pictures();
  const auto reference = make_cpu_executor(alone);
  const std::vector<Answer> expected = run_batch(*reference, alone, pictures);
  REQUIRE(expected[5].failed);
  constexpr int kInstances = 2;
  constexpr int kRounds = 12;
  std::atomic<int> wrong{0};
  std::vector<std::thread> instances;
  for (int n = 0; n < kInstances; ++n) {
    instances.emplace_back([&] {
      const auto executor = make_cpu_executor(operation);
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<Answer> answers = run_batch(*executor, operation, pictures);
        for (size_t i = 0; i < answers.size(); ++i) {
          const bool alike = answers[i].failed == expected[i].failed;
          if (!alike || (!answers[i].failed && answers[i].sample != expected[i].sample)) ++wrong;
        }
      }
    });
  }
  for (std::thread& instance : instances) instance.join();
  REQUIRE(wrong == 0);
}
