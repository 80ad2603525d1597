#include <algorithm>
#include <random>
#include <string>

#include "catch.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "triton/json.h"
#include "triton/model_config.h"

using namespace tritonstack::image;

TEST_CASE("documents come back as they were") {
  const std::string source =
      R"({"name":"a","n":[1,-2,3.5e-2,true,false,null],"o":{"x":{}},"s":"\u00e4 \ud83d\ude00 \" \\ \n"})";
  const Json json = Json::parse(source);
  REQUIRE(json.at("name").string() == "a");
  REQUIRE(json.at("n").items()[1].whole(0) == -2);
  REQUIRE(json.at("n").items()[2].whole(7) == 7);
  REQUIRE(json.at("n").items()[3].is_true());
  REQUIRE(json.at("s").string() == "\xC3\xA4 \xF0\x9F\x98\x80 \" \\ \n");
  REQUIRE(json.at("nothing").at("at").at("all").kind() == Json::Kind::null);
  REQUIRE(Json::parse(json.dump()).dump() == json.dump());
}

TEST_CASE("what is not JSON is refused") {
  for (const char* bad :
       {"", "{", "[1,", "{\"a\"}", "{\"a\":1,}", "tru", "\"x", "\"\\q\"", "\"\\u12\"", "1 2", "[1 2]"}) {
    REQUIRE_THROWS(Json::parse(bad));
  }
  REQUIRE_THROWS(Json::parse(std::string(100000, '[')));
  const std::string seed = R"({"a":[1,{"b":"c\u0041"}],"d":-1.5})";
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    std::string text = seed;
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = static_cast<char>(random());
    try {
      static_cast<void>(Json::parse(text).dump());
    } catch (const std::runtime_error&) {
      continue;
    }
  }
}

TEST_CASE("a config is completed only where it says nothing") {
  Json empty = Json::parse(R"({"max_batch_size":0,"parameters":{"center_crop":{"string_value":"8x9"}}})");
  REQUIRE(complete_model_config(empty, 4));
  const ModelConfig config = read_model_config(empty);
  REQUIRE(config.batched);
  REQUIRE(config.encoded);
  REQUIRE(config.input == "image_bytes");
  REQUIRE(config.output == "preprocessed");
  REQUIRE(empty.at("output").items()[0].at("dims").dump() == "[3,8,9]");
  Json full = empty;
  REQUIRE_FALSE(complete_model_config(full, 4));
  REQUIRE(full.dump() == empty.dump());
}

TEST_CASE("parameters for clients are left alone, unknown ones are refused") {
  const std::string tensors = R"("input":[{"name":"i","data_type":"TYPE_STRING","dims":[1]}],)"
                              R"("output":[{"name":"o","data_type":"TYPE_FP32","dims":[3,-1,-1]}])";
  REQUIRE_NOTHROW(read_model_config(
      Json::parse("{" + tensors + R"(,"parameters":{"tritonstack.image_bytes":{"string_value":"{}"}}})")));
  REQUIRE_THROWS_AS(read_model_config(Json::parse("{" + tensors + R"(,"parameters":{"hight":{"string_value":"3"}}})")),
                    ConfigError);
}

TEST_CASE("GPU instances share the processors") {
  const auto read = [](const std::string& more) {
    return read_model_config(Json::parse(
        R"({"input":[{"name":"i","data_type":"TYPE_STRING","dims":[1]}],)"
        R"("output":[{"name":"o","data_type":"TYPE_FP32","dims":[3,-1,-1]}])" +
        more + "}"));
  };
  REQUIRE(read("").gpu_instances == 0);
  REQUIRE(read(R"(,"instance_group":[{"kind":"KIND_CPU","count":9}])").gpu_instances == 0);
  const ModelConfig five = read(
      R"(,"instance_group":[{"kind":"KIND_GPU","count":2,"gpus":[0,1]},{"kind":"KIND_GPU"},{"kind":"KIND_CPU","count":4}])");
  REQUIRE(five.gpu_instances == 5);
  REQUIRE(five.decode_threads() == std::clamp(usable_processors() / 5, 1, 16));
  REQUIRE(read(R"(,"instance_group":[{"kind":"KIND_GPU","count":100000}])").decode_threads() == 1);
  REQUIRE(read(R"(,"parameters":{"decode_threads":{"string_value":"7"}})").decode_threads() == 7);
  REQUIRE(read(R"(,"parameters":{"decode_threads":{"string_value":"0"}})").decode_threads() == 0);
  REQUIRE_THROWS_AS(read(R"(,"parameters":{"decode_threads":{"string_value":"-1"}})"), ConfigError);
}
