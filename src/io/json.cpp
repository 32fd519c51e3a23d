// SPDX-License-Identifier: Apache-2.0

#include "io/json.h"

#include <functional>
#include <unordered_set>
#include <vector>

#include "core/fail.h"
#include "core/text.h"
#include "io/file.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxShown = 160;  // bytes of a value or of the parser's words

// Watches the parser's events and throws as soon as a limit is exceeded or a key repeats.
class Watcher {
 public:
  Watcher(const std::string& file, const JsonLimits& limits) : file_(file), limits_(limits) {}

  bool operator()(int, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        count();
        keys_.emplace_back();
        require(keys_.size() <= limits_.max_depth, Errc::kMalformedFile,
                "json: {} nests deeper than {} levels", file_, limits_.max_depth);
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end: keys_.pop_back(); break;
      case json::parse_event_t::key: {
        count();
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) {
          fail(Errc::kMalformedFile, "json: {} has the key {} twice in one object", file_,
               quote(key));
        }
        break;
      }
      case json::parse_event_t::value: count(); break;
    }
    return true;
  }

 private:
  void count() {
    require(++num_values_ <= limits_.max_values, Errc::kMalformedFile,
            "json: {} has more than {} values", file_, limits_.max_values);
  }

  const std::string& file_;
  const JsonLimits& limits_;
  std::size_t num_values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  refuse_lfs_pointer(text, file);
  // The parser would take a NUL for the end of the text and ignore the rest.
  require(text.find('\0') == std::string_view::npos, Errc::kMalformedFile,
          "json: {} contains a NUL byte at offset {}, must be text", file, text.find('\0'));
  Watcher watcher(file, limits);
  try {
    return json::parse(text.begin(), text.end(), std::ref(watcher));
  } catch (const json::exception& error) {
    fail(Errc::kMalformedFile, "json: {}: {}", file, describe_error(error));
  }
}

// "[json.exception.parse_error.101] parse error at line 1, ...; last read: '<the whole token>'"
std::string describe_error(const json::exception& error) {
  const std::string_view what = error.what();
  const std::size_t name_end = what.find("] ");
  return shorten(name_end == what.npos ? what : what.substr(name_end + 2), kMaxShown);
}

std::string describe_json(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return shorten(value.dump(-1, ' ', false, json::error_handler_t::replace), kMaxShown);
}

JsonObject::JsonObject(const json& value, const std::string& file, const char* function)
    : object_(value), file_(file), function_(function) {
  if (!value.is_object()) {
    fail(Errc::kMalformedFile, "{}: {} holds {}, must hold an object", function, file,
         describe_json(value));
  }
}

bool JsonObject::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const json& JsonObject::value(const char* key) const {
  const auto found = object_.find(key);
  require(found != object_.end(), Errc::kMalformedFile, "{}: {} has no key {}", function_, file_,
          key);
  refuse_null(key);
  return *found;
}

void JsonObject::refuse_null(const char* key) const {
  require(!is_null(key), Errc::kMalformedFile, "{}: {}: {} is null, must be a value", function_,
          file_, key);
}

void JsonObject::refuse(const char* key, const std::string& want) const {
  fail(Errc::kMalformedFile, "{}: {}: {} is {}, must be {}", function_, file_, key,
       describe_json(value(key)), want);
}

std::int32_t JsonObject::integer(const char* key, std::int32_t min, std::int32_t max) const {
  const json& number = value(key);
  if (number.is_number_unsigned()) {
    const auto whole = number.get<std::uint64_t>();
    if (whole <= static_cast<std::uint64_t>(max) &&
        static_cast<std::int64_t>(whole) >= std::int64_t{min}) {
      return static_cast<std::int32_t>(whole);
    }
  } else if (number.is_number_integer()) {
    const auto whole = number.get<std::int64_t>();
    if (whole >= min && whole <= max) return static_cast<std::int32_t>(whole);
  }
  refuse(key, fmt::format("a whole number from {} to {}", min, max));
}

std::int32_t JsonObject::integer_or(const char* key, std::int32_t absent, std::int32_t min,
                                    std::int32_t max) const {
  return has(key) ? integer(key, min, max) : absent;
}

std::uint64_t JsonObject::unsigned_or(const char* key, std::uint64_t absent,
                                      std::uint64_t max) const {
  if (!has(key)) return absent;
  const json& number = value(key);
  if (number.is_number_unsigned() && number.get<std::uint64_t>() <= max) {
    return number.get<std::uint64_t>();
  }
  refuse(key, fmt::format("a whole number from 0 to {}", max));
}

bool JsonObject::boolean_or(const char* key, bool absent) const {
  if (!has(key)) return absent;
  if (!value(key).is_boolean()) refuse(key, "true or false");
  return value(key).get<bool>();
}

double JsonObject::number_or(const char* key, double absent) const {
  if (!has(key)) return absent;
  if (!value(key).is_number()) refuse(key, "a number");
  return value(key).get<double>();
}

std::string JsonObject::text_or(const char* key, std::string absent) const {
  if (!has(key)) return absent;
  if (!value(key).is_string()) refuse(key, "text");
  return value(key).get<std::string>();
}

}  // namespace switchyard
