// SPDX-License-Identifier: Apache-2.0
//
// json.h: strict JSON for untrusted files: depth and number of values are bounded, duplicate keys
// are rejected, and every failure is kMalformedFile. Include it only from .cpp files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace switchyard {

struct JsonLimits {
  std::size_t max_depth = 32;
  std::size_t max_values = 1'000'000;  ///< values and keys in the whole document
};

/// Messages name `file`. Errors: kMalformedFile.
nlohmann::json parse_json(std::string_view text, const std::string& file,
                          const JsonLimits& limits = {});

/// What the parser says of a text that is not JSON: short, without the name of its exception.
std::string describe_error(const nlohmann::json::exception& error);

/// Formats a value for a message: one line, cut after 160 bytes.
std::string describe_json(const nlohmann::json& value);

/// Typed reads from one JSON object. Messages name the file, the key, its value and what it should
/// be. A null value counts as absent, as in Python. Holds references: use it as a local only.
class JsonObject {
 public:
  /// `function` begins every message. Errors: kMalformedFile when `value` is not an object.
  JsonObject(const nlohmann::json& value, const std::string& file, const char* function);

  bool has(const char* key) const;
  /// True even when the value is null.
  bool has_key(const char* key) const { return object_.contains(key); }
  bool is_null(const char* key) const { return has_key(key) && !has(key); }
  const nlohmann::json& value(const char* key) const;

  std::int32_t integer(const char* key, std::int32_t min, std::int32_t max) const;
  std::int32_t integer_or(const char* key, std::int32_t absent, std::int32_t min,
                          std::int32_t max) const;
  std::uint64_t unsigned_or(const char* key, std::uint64_t absent, std::uint64_t max) const;
  bool boolean_or(const char* key, bool absent) const;
  double number_or(const char* key, double absent) const;
  std::string text_or(const char* key, std::string absent) const;

  /// Throws kMalformedFile: "FUNCTION: FILE: KEY is VALUE, want ...".
  [[noreturn]] void refuse(const char* key, const std::string& want) const;
  /// Throws kMalformedFile when the key is there and null, which the readers take for absent.
  void refuse_null(const char* key) const;

 private:
  const nlohmann::json& object_;
  const std::string& file_;
  const char* function_;
};

}  // namespace switchyard
