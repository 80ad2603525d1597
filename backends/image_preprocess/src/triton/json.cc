#include "triton/json.h"

#include <charconv>
#include <cstring>
#include <stdexcept>

namespace tritonstack::image {
namespace {

constexpr int kMaxDepth = 100;

void append_utf8(std::string& text, uint32_t code) {
  const auto byte = [&](uint32_t value) { text.push_back(static_cast<char>(static_cast<unsigned char>(value))); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xC0 | (code >> 6));
    byte(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    byte(0xE0 | (code >> 12));
    byte(0x80 | ((code >> 6) & 0x3F));
    byte(0x80 | (code & 0x3F));
  } else {
    byte(0xF0 | (code >> 18));
    byte(0x80 | ((code >> 12) & 0x3F));
    byte(0x80 | ((code >> 6) & 0x3F));
    byte(0x80 | (code & 0x3F));
  }
}

std::string quoted(const std::string& text) {
  const char* const digits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20) {
      result += "\\u00";
      result += digits[byte >> 4];
      result += digits[byte & 15];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace

class JsonParser {
 public:
  explicit JsonParser(const std::string& source) : source_(source) {}

  Json document() {
    Json value = parse_value(0);
    skip_space();
    if (at_ != source_.size()) fail("something behind the document");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error("JSON: " + std::string(what) + " at byte " + std::to_string(at_));
  }

  void skip_space() {
    while (at_ < source_.size() && std::strchr(" \t\r\n", source_[at_]) != nullptr && source_[at_] != '\0') ++at_;
  }

  char peek() {
    skip_space();
    if (at_ == source_.size()) fail("the end came too soon");
    return source_[at_];
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail("an unexpected character");
  }

  Json parse_value(int depth) {
    if (depth > kMaxDepth) fail("nested too deeply");
    Json value;
    const char first = peek();
    if (first == '{') {
      parse_object(value, depth);
    } else if (first == '[') {
      parse_array(value, depth);
    } else if (first == '"') {
      value.kind_ = Json::Kind::string;
      value.text_ = parse_string();
    } else {
      parse_word(value);
    }
    return value;
  }

  void parse_object(Json& value, int depth) {
    value.kind_ = Json::Kind::object;
    expect('{');
    if (take('}')) return;
    do {
      if (peek() != '"') fail("a name without quotes");
      std::string name = parse_string();
      expect(':');
      value.members_.emplace_back(std::move(name), parse_value(depth + 1));
    } while (take(','));
    expect('}');
  }

  void parse_array(Json& value, int depth) {
    value.kind_ = Json::Kind::array;
    expect('[');
    if (take(']')) return;
    do {
      value.items_.push_back(parse_value(depth + 1));
    } while (take(','));
    expect(']');
  }

  void parse_word(Json& value) {
    const size_t start = at_;
    while (at_ < source_.size() && std::strchr(",]} \t\r\n", source_[at_]) == nullptr) ++at_;
    value.text_ = source_.substr(start, at_ - start);
    if (value.text_ == "null") {
      value.kind_ = Json::Kind::null;
    } else if (value.text_ == "true" || value.text_ == "false") {
      value.kind_ = Json::Kind::boolean;
    } else if (!value.text_.empty() && value.text_.find_first_not_of("+-.0123456789eE") == std::string::npos) {
      value.kind_ = Json::Kind::number;
    } else {
      fail("an unknown word");
    }
  }

  uint32_t parse_hex() {
    uint32_t code = 0;
    if (source_.size() - at_ < 4) fail("a cut off escape");
    const auto [end, error] = std::from_chars(source_.data() + at_, source_.data() + at_ + 4, code, 16);
    if (error != std::errc{} || end != source_.data() + at_ + 4) fail("a bad escape");
    at_ += 4;
    return code;
  }

  void parse_escape(std::string& text) {
    constexpr char kShort[] = "\"\\/bfnrt";
    constexpr char kMeant[] = "\"\\/\b\f\n\r\t";
    if (at_ == source_.size()) fail("a cut off escape");
    const char letter = source_[at_++];
    if (letter == 'u') {
      uint32_t code = parse_hex();
      const bool high = code >= 0xD800 && code < 0xDC00;
      if (high && source_.compare(at_, 2, "\\u") == 0) {
        at_ += 2;
        code = 0x10000 + ((code - 0xD800) << 10) + ((parse_hex() - 0xDC00) & 0x3FF);
      }
      append_utf8(text, code);
      return;
    }
    const char* known = letter == '\0' ? nullptr : std::strchr(kShort, letter);
    if (known == nullptr) fail("a bad escape");
    text += kMeant[known - kShort];
  }

  std::string parse_string() {
    std::string text;
    ++at_;
    for (;;) {
      if (at_ == source_.size()) fail("a string without end");
      const char c = source_[at_++];
      if (c == '"') return text;
      if (c == '\\') {
        parse_escape(text);
      } else {
        text += c;
      }
    }
  }

  const std::string& source_;
  size_t at_ = 0;
};

Json Json::text(std::string value) {
  Json json;
  json.kind_ = Kind::string;
  json.text_ = std::move(value);
  return json;
}

Json Json::number(int64_t value) {
  Json json;
  json.kind_ = Kind::number;
  json.text_ = std::to_string(value);
  return json;
}

Json Json::array(std::vector<Json> items) {
  Json json;
  json.kind_ = Kind::array;
  json.items_ = std::move(items);
  return json;
}

Json Json::object() {
  Json json;
  json.kind_ = Kind::object;
  return json;
}

Json Json::parse(const std::string& source) {
  return JsonParser(source).document();
}

const Json& Json::at(const std::string& name) const {
  static const Json nothing;
  for (const auto& [key, value] : members_) {
    if (key == name) return value;
  }
  return nothing;
}

void Json::set(const std::string& name, Json value) {
  for (auto& [key, old] : members_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  members_.emplace_back(name, std::move(value));
}

int64_t Json::whole(int64_t fallback) const {
  // 64-bit values arrive as strings in some of protobuf's JSON.
  if (kind_ != Kind::number && kind_ != Kind::string) return fallback;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
  return error == std::errc{} && end == text_.data() + text_.size() ? value : fallback;
}

std::string Json::dump() const {
  std::string result;
  switch (kind_) {
    case Kind::null:
      return "null";
    case Kind::boolean:
    case Kind::number:
      return text_;
    case Kind::string:
      return quoted(text_);
    case Kind::array:
      for (const Json& item : items_) result += (result.empty() ? "" : ",") + item.dump();
      return "[" + result + "]";
    case Kind::object:
      for (const auto& [name, value] : members_)
        result += (result.empty() ? "" : ",") + quoted(name) + ":" + value.dump();
      return "{" + result + "}";
  }
  return result;
}

}  // namespace tritonstack::image
