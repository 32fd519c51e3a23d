// SPDX-License-Identifier: Apache-2.0
//
// Settings and messages of the library.

#include "core/settings.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "switchyard/log.h"

#include "core/fail.h"
#include "errors.h"
#include "gil.h"
#include "module.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

struct PySetting {
  std::string name;
  std::string value;
  std::string origin;
  std::string default_value;
  std::string help;
};

PySetting describe(const SettingInfo& info) {
  const SettingValue now = shown_setting(info.name);
  return {info.name, now.text, name_of(now.origin), info.default_text, info.help};
}

nb::dict all() {
  nb::dict found;
  for (const SettingInfo& info : all_settings()) found[info.name] = describe(info);
  return found;
}

void set(const std::string& name, const std::string& value) {
  bool is_known = false;
  for (const SettingInfo& info : all_settings()) is_known |= name == info.name;
  require(is_known, Errc::kInvalidArgument,
          "set_setting: there is no setting \"{}\"; settings() has them", name);
  set_setting(name, value);
}

// Messages come from any thread. What the callback raises goes to sys.unraisablehook, because who
// logs cannot fail; an interpreter that ends gets no more.
void send(const std::shared_ptr<const void>& callback, LogLevel level, int rank,
          std::string_view subsystem, std::string_view text) {
  if (!Py_IsInitialized() || !may_take_gil()) return;
  const WithGil held;
  const nb::handle function(static_cast<PyObject*>(const_cast<void*>(callback.get())));
  try {
    function(enum_name(level), rank, std::string(subsystem), shown_text(text));
  } catch (nb::python_error& raised) {
    raised.discard_as_unraisable(function);
  }
}

void log_to(nb::handle callback) {
  if (callback.is_none()) return set_log_callback({});
  if (PyCallable_Check(callback.ptr()) == 0)
    fail_type("set_log_callback: callback", callback,
              "callable as (level, rank, subsystem, text), or None");
  set_log_callback([kept = keep(nb::borrow(callback))](
                       LogLevel level, int rank, std::string_view subsystem,
                       std::string_view text) { send(kept, level, rank, subsystem, text); });
}

void log_level(const std::string& name) { set_log_level(enum_from<LogLevel>(name)); }

}  // namespace

void bind_settings(nb::module_& m) {
  nb::class_<PySetting>(m, "Setting", "An environment variable of the library, and what holds now.")
      .def_ro("name", &PySetting::name, "SWITCHYARD_...")
      .def_prop_ro(
          "value", [](const PySetting& self) { return shown_text(self.value); },
          nb::sig("def value(self) -> str"), "What counts now; a secret is \"(set)\".")
      .def_ro("origin", &PySetting::origin, "\"default\", \"environment\" or \"program\".")
      .def_ro("default", &PySetting::default_value, "The value unless it is set.")
      .def_ro("help", &PySetting::help, "One sentence.")
      .def("__repr__", [](const PySetting& self) {
        return shown_text("Setting(" + self.name + "='" + self.value + "', origin='" + self.origin +
                          "')");
      });
  m.def("settings", &all, nb::sig("def settings() -> dict[str, Setting]"),
        "Every setting by its name; docs/settings.md explains them.");
  m.def(
      "set_setting", &set, nb::arg("name"), nb::arg("value"),
      "A value that wins over the environment, for objects that are made afterwards. Errors in it "
      "appear where it is used.");
  m.def("set_log_callback", &log_to, nb::arg("callback").none(),
        nb::sig("def set_log_callback(callback: Callable[[str, int, str, str], object] | None) -> "
                "None"),
        "Sends messages to callback(level, rank, subsystem, text) instead of stderr; None restores "
        "stderr.\nIt is called on any thread; rank is -1 outside any group.");
  m.def(
      "set_log_level", &log_level, nb::arg("level"),
      nb::sig("def set_log_level(level: Literal['error', 'warn', 'info', 'debug', 'trace', "
              "'off']) -> None"),
      "Drops messages above the level. The default is that of SWITCHYARD_LOG_LEVEL, or \"warn\".");
}

}  // namespace switchyard::python
