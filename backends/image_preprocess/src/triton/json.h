// Triton hands over model configs as JSON; this reads and writes them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tritonstack::image {

// One JSON value. Numbers keep their text, so that what is not understood is written back as it came.
class Json {
 public:
  enum class Kind { null, boolean, number, string, array, object };

  Json() = default;
  static Json text(std::string value);
  static Json number(int64_t value);
  static Json array(std::vector<Json> items = {});
  static Json object();

  // Raises std::runtime_error with the position for anything that is not one JSON document.
  static Json parse(const std::string& source);

  Kind kind() const { return kind_; }
  // A member of an object; a null value where there is none or this is no object.
  const Json& at(const std::string& name) const;
  void set(const std::string& name, Json value);

  const std::vector<Json>& items() const { return items_; }
  const std::vector<std::pair<std::string, Json>>& members() const { return members_; }
  const std::string& string() const { return text_; }
  // The fallback where this is not a whole number.
  int64_t whole(int64_t fallback) const;
  bool is_true() const { return kind_ == Kind::boolean && text_ == "true"; }

  std::string dump() const;

 private:
  friend class JsonParser;

  Kind kind_ = Kind::null;
  std::string text_;  // of strings, numbers and booleans
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace tritonstack::image
