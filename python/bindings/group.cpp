// SPDX-License-Identifier: Apache-2.0
//
// Groups. Ways to make one that need only Python (from_torch, from_mpi, run_local) are in
// switchyard/groups.py, over `from_store` and `local_groups`.

#include "group.h"

#include <optional>
#include <string>
#include <vector>

#include "switchyard/group_from_mpi.h"

#include "core/log.h"
#include "engine/control.h"
#include "engine/engine.h"
#include "engine/group_options.h"
#include "engine/local_engine.h"
#include "engine/mpi_messages.h"
#include "engine/registry.h"
#include "errors.h"
#include "module.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

constexpr const char* kStore = "store: set(key, value) or get(key, timeout_ms)";

PyGroup made(Group group) { return {Owned<Group>(std::make_unique<Group>(std::move(group)))}; }

GroupOptions options_of(const std::string& engine, std::int64_t timeout_ms,
                        const std::string& secret) {
  return {.engine = engine, .timeout_ms = timeout_ms, .secret = secret};
}

PyGroup from_environment(const std::string& engine, std::int64_t timeout_ms,
                         const std::string& secret) {
  return made(
      without_gil([&] { return Group::from_environment(options_of(engine, timeout_ms, secret)); }));
}

// An object with set and get, or a pair of functions.
StoreFunctions store_functions(nb::handle store) {
  nb::object set, get;
  if (nb::isinstance<nb::tuple>(store)) {
    require(nb::len(store) == 2, Errc::kInvalidArgument, "store: {} functions, must be set and get",
            nb::len(store));
    set = store[0];
    get = store[1];
  } else {
    if (!nb::hasattr(store, "set") || !nb::hasattr(store, "get"))
      fail_type("store", store,
                "an address, a path, a pair of functions or an object with set and get");
    set = store.attr("set");
    get = store.attr("get");
  }
  const auto kept_set = keep(set);
  const auto kept_get = keep(get);
  const auto function = [](const std::shared_ptr<const void>& kept) {
    return nb::borrow(static_cast<PyObject*>(const_cast<void*>(kept.get())));
  };
  return {.set =
              [kept_set, function](const std::string& key, const std::string& value) {
                in_callback([&] { function(kept_set)(key, value); });
              },
          .get =
              [kept_get, function](const std::string& key, std::int64_t timeout_ms) {
                return in_callback([&]() -> std::optional<std::string> {
                  const nb::object value = function(kept_get)(key, timeout_ms);
                  if (value.is_none()) return std::nullopt;
                  return nb::cast<std::string>(value);
                });
              }};
}

PyGroup from_store(int rank, int size, nb::handle store, const std::string& engine,
                   std::int64_t timeout_ms, const std::string& secret) {
  const GroupOptions options = options_of(engine, timeout_ms, secret);
  if (nb::isinstance<nb::str>(store) || nb::isinstance<nb::bytes>(store) ||
      nb::hasattr(store, "__fspath__")) {
    // As the system has paths: with bytes that are not UTF-8 too.
    const nb::bytes path = nb::cast<nb::bytes>(nb::module_::import_("os").attr("fsencode")(store));
    const std::string address(path.c_str(), path.size());
    return made(without_gil([&] { return Group::from(rank, size, address, options); }));
  }
  const StoreFunctions functions = store_functions(store);
  return made(without_gil([&] { return Group::from(rank, size, functions, options); }));
}

void require_mpi_options(int rank, int size, const std::string& engine, std::int64_t timeout_ms) {
  const GroupOptions options = options_of(engine, timeout_ms, "");
  (void)timeout_of(options);
  JoinRequest request;
  request.ranks.rank = rank;
  request.ranks.size = size;
  request.ranks.source = "MPI";
  require_engine(engine_of(options), request);
}

std::vector<PyGroup> local_groups(int size, std::int64_t timeout_ms) {
  std::vector<PyGroup> groups;
  for (auto& engine : make_local_engines(size, timeout_of({.timeout_ms = timeout_ms})))
    groups.push_back(made(Group(std::move(engine))));
  return groups;
}

std::string describe(const PyGroup& self) {
  if (self.group.is_closed()) return "Group(closed)";
  const auto group = self.live();
  return fmt::format("Group(rank={}, size={}, engine='{}')", group->rank(), group->size(),
                     group->engine_name());
}

}  // namespace

void bind_group(nb::module_& m) {
  nb::class_<PyGroup>(m, "Group",
                      "The ranks that exchange. One thread of each rank makes collective calls, in "
                      "the same order on\n"
                      "every rank. close() or the end of a `with` block leaves the group.")
      .def(
          "__init__",
          [](PyGroup* self, int rank, int size, nb::handle store, const std::string& engine,
             std::int64_t timeout_ms, const std::string& secret) {
            new (self) PyGroup(from_store(rank, size, store, engine, timeout_ms, secret));
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("store"), nb::kw_only(), nb::arg("engine") = "",
          nb::arg("timeout_ms") = 0, nb::arg("secret") = "",
          nb::sig("def __init__(self, rank: int, size: int, store: StoreLike, *, engine: str = '', "
                  "timeout_ms: int = 0, secret: str = '') -> None"),
          "Joins `size` ranks over a store that all of them name: \"host:port\" (rank 0 serves "
          "there; needs a secret),\n"
          "\"unix:@name\", \"/path/file\", or functions (set, get): set(key, value), get(key, "
          "timeout_ms) -> str or None.\n"
          "Collective. timeout_ms 0: the setting SWITCHYARD_TIMEOUT_MS.")
      .def_static("from_env", &from_environment, nb::kw_only(), nb::arg("engine") = "",
                  nb::arg("timeout_ms") = 0, nb::arg("secret") = "",
                  "Joins the ranks that torchrun, mpirun, srun or `switchyard` started; alone "
                  "without any. Collective.")
      .def_static(
          "from_torch",
          [](nb::handle process_group, const nb::kwargs& options) {
            return nb::module_::import_("switchyard.groups")
                .attr("from_torch")(process_group, **options);
          },
          nb::arg("process_group").none() = nb::none(), nb::arg("options"),
          nb::sig("def from_torch(process_group: torch.distributed.ProcessGroup | None = None, *, "
                  "engine: str = '', timeout_ms: int = 0) -> Group"),
          "The ranks of a torch.distributed process group; None: the default group. Collective "
          "over it.")
      .def_static(
          "from_mpi",
          [](nb::handle communicator, const nb::kwargs& options) {
            return nb::module_::import_("switchyard.groups")
                .attr("from_mpi")(communicator, **options);
          },
          nb::arg("communicator"), nb::arg("options"),
          nb::sig("def from_mpi(communicator: mpi4py.MPI.Comm, *, engine: str = '', timeout_ms: "
                  "int = 0) -> Group"),
          "The ranks of an mpi4py communicator, on any hosts. Collective over it.")
      .def_prop_ro(
          "rank", [](const PyGroup& self) { return self.live()->rank(); }, "This rank, from 0.")
      .def_prop_ro(
          "size", [](const PyGroup& self) { return self.live()->size(); }, "Number of ranks.")
      .def_prop_ro(
          "host_rank", [](const PyGroup& self) { return self.live()->host_rank(); },
          "Place among the ranks that share this host.")
      .def_prop_ro(
          "host_size", [](const PyGroup& self) { return self.live()->host_size(); },
          "Number of ranks that share this host.")
      .def_prop_ro(
          "engine", [](const PyGroup& self) { return self.live()->engine_name(); },
          "\"local\", \"shm\" or \"mpi\".")
      .def_prop_ro(
          "timeout_ms", [](const PyGroup& self) { return self.live()->timeout_ms(); },
          "Longest wait for a peer.")
      .def(
          "default_gpu", [](const PyGroup& self) { return default_gpu(*self.live()); },
          "The GPU with number host_rank, starting over where ranks outnumber GPUs.")
      .def(
          "split",
          [](const PyGroup& self, int color, int key) -> std::optional<PyGroup> {
            const auto group = self.live();
            const Exclusive call = self.call();
            Group part = without_gil([&] { return group->split(color, key); });
            if (part.is_empty()) return std::nullopt;
            return made(std::move(part));
          },
          nb::arg("color"), nb::arg("key") = 0,
          "A group of the ranks that pass the same color, ordered by (key, rank); None for a "
          "negative color. Collective.")
      .def(
          "barrier",
          [](const PyGroup& self) {
            const auto group = self.live();
            const Exclusive call = self.call();
            without_gil([&] { group->barrier(); });
          },
          "Returns when every rank has called it.")
      .def(
          "abort",
          [](const PyGroup& self, const std::string& reason) { self.live()->abort(reason); },
          nb::arg("reason"),
          "Ends the current and later calls of every rank with AbortedError. Any thread.")
      .def(
          "error",
          [](const PyGroup& self) -> nb::object {
            const std::optional<Error> error = self.live()->error();
            if (!error) return nb::none();
            return nb::module_::import_("switchyard.errors")
                .attr("make_error")(name_of(error->code()), error->what());
          },
          nb::sig("def error(self) -> Error | None"),
          "Why the group ended, None while all is well. Does not wait. Any thread.")
      .def("_has_seen_abort",
           [](const PyGroup& self) { return self.live()->control().has_seen_abort(); })
      .def(
          "close", [](PyGroup& self) { self.group.drop(); },
          "Leaves the group, once the objects made from it are closed too.")
      .def_prop_ro(
          "is_closed", [](const PyGroup& self) { return self.group.is_closed(); },
          "Whether close() was called.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Group"))
      .def(
          "__exit__", [](PyGroup& self, const nb::args&) { self.group.drop(); },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("__repr__", &describe);
  m.def(
      "group_from_mpi_handle",
      [](int communicator, const std::string& engine, std::int64_t timeout_ms) {
        const GroupOptions options = options_of(engine, timeout_ms, "");
        return made(without_gil([&] { return group_from_mpi_handle(communicator, options); }));
      },
      nb::arg("communicator"), nb::kw_only(), nb::arg("engine") = "", nb::arg("timeout_ms") = 0,
      "The ranks of the MPI communicator with this Fortran handle; see Group.from_mpi.");
  m.def("require_mpi_options", &require_mpi_options, nb::arg("rank"), nb::arg("size"),
        nb::kw_only(), nb::arg("engine") = "", nb::arg("timeout_ms") = 0,
        "Throws what this rank alone finds wrong with options of Group.from_mpi.");
  m.def("why_no_communicators", &why_no_communicators_here,
        "Why the library cannot use MPI communicators of this process; empty if it can.");
  m.def("local_groups", &local_groups, nb::arg("size"), nb::arg("timeout_ms"),
        "One group object per rank of this process, for threads; see run_local.");
  m.def(
      "set_log_rank", [](int rank) { set_log_rank(rank); }, nb::arg("rank"));
}

}  // namespace switchyard::python
