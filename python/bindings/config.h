// SPDX-License-Identifier: Apache-2.0
//
// config.h: structs of options as Python classes: made by keywords, compared with ==, and shown
// with what differs from the defaults. Enums are their names.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fail.h"
#include "core/fields.h"
#include "dtypes.h"
#include "errors.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {

/// How a member of type T is read from Python, shown, and written in type stubs.
template <typename T>
struct Field {
  static T from(nb::handle value) { return nb::cast<T>(value); }
  static nb::object to(const T& value) { return nb::cast(value); }
  static std::string type() {
    if constexpr (std::is_same_v<T, bool>) return "bool";
    if constexpr (std::is_integral_v<T>) return "int";
    if constexpr (std::is_floating_point_v<T>) return "float";
    if constexpr (std::is_same_v<T, std::string>) return "str";
    return "Sequence[int]";
  }
};

template <NamedEnum T>
struct Field<T> {
  static T from(nb::handle value) { return enum_from<T>(nb::cast<std::string>(value)); }
  static nb::object to(T value) { return nb::str(enum_name(value)); }
  static std::string type() { return literal_of<T>(); }
};

template <>
struct Field<QuantScheme> {
  static QuantScheme from(nb::handle value) { return scheme_from(value); }
  static nb::object to(const QuantScheme& value) { return nb::cast(value); }
  static std::string type() { return "SchemeLike"; }
};

template <>
struct Field<DType> {
  static DType from(nb::handle value) { return dtype_from(value); }
  static nb::object to(DType value) { return nb::str(name_of(value)); }
  static std::string type() { return "DTypeLike"; }
};

template <>
struct Field<Device> {
  static Device from(nb::handle value) { return device_from(value); }
  static nb::object to(const Device& value) { return nb::cast(value); }
  static std::string type() { return "DeviceLike"; }
};

template <typename T>
struct Field<std::optional<T>> {
  static std::optional<T> from(nb::handle value) {
    return value.is_none() ? std::nullopt : std::optional<T>(Field<T>::from(value));
  }
  static nb::object to(const std::optional<T>& value) {
    return value ? Field<T>::to(*value) : nb::none();
  }
  static std::string type() { return Field<T>::type() + " | None"; }
};

template <typename T>
struct FieldEntry {
  std::string name;
  std::string type;
  std::function<void(T&, nb::handle)> set;
  std::function<nb::object(const T&)> get;
};

/// The members of T that Python has; filled when its class is bound.
template <typename T>
std::vector<FieldEntry<T>>& fields_of() {
  static auto& fields = *new std::vector<FieldEntry<T>>;
  return fields;
}

/// Fills them from T's list of fields.
template <typename T>
void add_fields() {
  for_each_field<T>([]<typename Member>(const OptionField<T, Member>& field) {
    fields_of<T>().push_back(
        {field.name, Field<Member>::type(),
         [member = field.member](T& options, nb::handle value) {
           options.*member = Field<Member>::from(value);
         },
         [member = field.member](const T& options) { return Field<Member>::to(options.*member); }});
  });
}

/// Sets a member by its keyword; false when T has none of this name.
/// Errors: TypeError with the name of the keyword.
template <typename T>
bool set_field(T& config, const std::string& name, nb::handle value) {
  for (const FieldEntry<T>& field : fields_of<T>()) {
    if (field.name != name) continue;
    try {
      field.set(config, value);
    } catch (const nb::cast_error&) {
      fail_type(name, value, field.type);
    }
    return true;
  }
  return false;
}

/// The keywords that set_field knows for each of T, after `others`.
template <typename... T>
std::vector<std::string_view> known_keywords(std::initializer_list<std::string_view> others = {}) {
  std::vector<std::string_view> known(others);
  [[maybe_unused]] const auto add = [&](const auto& fields) {
    for (const auto& field : fields) known.push_back(field.name);
  };
  (add(fields_of<T>()), ...);
  return known;
}

template <typename T>
void set_fields(T& config, const nb::kwargs& keywords, const char* type) {
  for (const auto& [key, value] : keywords) {
    const std::string name = nb::cast<std::string>(key);
    if (!set_field(config, name, value)) fail_keyword(type, name, known_keywords<T>());
  }
}

template <typename T>
std::string describe(const T& config, const char* type) {
  const T defaults{};
  std::string text;
  for (const FieldEntry<T>& field : fields_of<T>()) {
    const nb::object value = field.get(config);
    if (value.equal(field.get(defaults))) continue;
    text += (text.empty() ? "" : ", ") + field.name + "=" + nb::repr(value).c_str();
  }
  return std::string(type) + "(" + text + ")";
}

/// Binds T, with the members in its list of fields, as a class of keywords; call done() last.
template <typename T>
class ConfigClass {
 public:
  ConfigClass(nb::module_& m, const char* name, const char* doc)
      : class_(m, name, doc), name_(name) {
    add_fields<T>();
    for_each_field<T>([this](const auto& field) { bind(field); });
  }

  nb::class_<T> done() {
    const char* type = name_;
    return done([type](const T& self) { return describe(self, type); });
  }
  /// `repr`: (const T&) -> std::string.
  template <typename Repr>
  nb::class_<T> done(Repr repr) {
    std::string keywords;
    for (const FieldEntry<T>& field : fields_of<T>())
      keywords += ", " + field.name + ": " + field.type + " = ...";
    const char* type = name_;
    class_.def(
        "__init__",
        [type](T* self, const nb::kwargs& values) {
          T made{};
          set_fields(made, values, type);
          new (self) T(std::move(made));
        },
        nb::sig(lasting("def __init__(self, *" + keywords + ") -> None")));
    class_.def(
        "replace",
        [type](const T& self, const nb::kwargs& values) {
          T made = self;
          set_fields(made, values, type);
          return made;
        },
        nb::sig(lasting("def replace(self, *" + keywords + ") -> " + std::string(type))),
        "A copy with other values.");
    class_.def("__repr__", repr);
    class_.def(
        "__eq__",
        [](const T& self, nb::handle other) {
          T value{};
          if (!nb::try_cast(other, value)) return false;
          for (const FieldEntry<T>& field : fields_of<T>()) {
            if (!field.get(self).equal(field.get(value))) return false;
          }
          return true;
        },
        nb::arg("other").none(), nb::sig("def __eq__(self, other: object) -> bool"));
    class_.attr("__hash__") = nb::none();  // members change
    return class_;
  }

 private:
  template <typename Member>
  void bind(const OptionField<T, Member>& field) {
    using Conversion = Field<Member>;
    const std::string start = "def " + std::string(field.name) + "(self";
    const std::string type = Conversion::type();
    class_.def_prop_rw(
        field.name, [member = field.member](const T& self) { return Conversion::to(self.*member); },
        [name = field.name](T& self, nb::handle value) { set_field(self, name, value); },
        nb::for_getter(nb::sig(lasting(start + ") -> " + type))),
        nb::for_setter(nb::sig(lasting(start + ", value: " + type + ") -> None"))),
        nb::arg("value").none(), field.help);
  }

  // nanobind keeps the pointer.
  static const char* lasting(const std::string& text) { return (new std::string(text))->c_str(); }

  nb::class_<T> class_;
  const char* name_;
};

}  // namespace switchyard::python
