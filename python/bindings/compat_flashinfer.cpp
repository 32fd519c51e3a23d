// SPDX-License-Identifier: Apache-2.0
//
// FlashInfer's one-sided and two-sided all-to-all.

#include <optional>

#include "compat.h"
#include "compat/flashinfer/mnnvl_moe.h"
#include "compat/flashinfer/moe_alltoall.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

using flashinfer::MnnvlMoe;
using flashinfer::MoeAlltoAll;
struct PyOneSided : PyCompat<MoeAlltoAll> {
  Stream dispatched = Stream::default_of(device);  // of the last dispatch
};
using PyTwoSided = PyCompat<MnnvlMoe>;
using PyPrepared = PyResult<MnnvlMoe, flashinfer::MoEAlltoallPrepared>;
constexpr const char* kOneSided = "MoeAlltoAll";
constexpr const char* kTwoSided = "MnnvlMoe";

nb::list dispatch(PyOneSided& self, nb::handle token_selected_experts,
                  const std::vector<nb::object>& payloads, std::int64_t max_tokens,
                  std::optional<std::int32_t> invalid_expert_id, std::int32_t id_payload,
                  nb::handle stream_argument) {
  const auto moe = self.live(kOneSided);
  const Exclusive call = self.call(kOneSided);
  Arrays arrays(stream_argument);
  const TensorView ids = arrays.in(token_selected_experts, "dispatch: token_selected_experts");
  std::vector<TensorView> rows;
  for (const nb::object& one : payloads) rows.push_back(arrays.in(one, "dispatch: input_payloads"));
  const Stream stream = arrays.stream(self.device);
  const flashinfer::MoeDispatchOptions options{.invalid_token_expert_id = invalid_expert_id,
                                               .expert_id_payload_index = id_payload};
  const std::vector<TensorView> views =
      without_gil([&] { return moe->dispatch(ids, rows, max_tokens, stream, options); });
  self.dispatched = stream;
  nb::list received;
  for (const TensorView& view : views) received.append(PyTensor{view, moe, stream});
  return received;
}

PyTensor combine(const PyOneSided& self, nb::handle payload, nb::handle stream_argument) {
  const auto moe = self.live(kOneSided);
  const Exclusive call = self.call(kOneSided);
  Arrays arrays(stream_argument);
  const TensorView rows = arrays.in(payload, "combine: payload");
  const Stream stream = arrays.stream(self.device);
  return PyTensor::of(without_gil([&] { return moe->combine(rows, stream); }), stream);
}

PyPrepared prepare(const PyTwoSided& self, nb::handle expert_ids, nb::handle scales,
                   nb::handle statics, std::int64_t max_tokens, std::int32_t expert_count,
                   std::int32_t slot_count, nb::handle stream_argument) {
  const auto moe = self.live(kTwoSided);
  const Exclusive call = self.call(kTwoSided);
  Arrays arrays(stream_argument);
  const TensorView ids = arrays.in(expert_ids, "prepare: expert_ids");
  const TensorView weights = arrays.in(scales, "prepare: scales");
  const TensorView values = arrays.in(statics, "prepare: expert_statics");
  const Stream stream = arrays.stream(self.device);
  return {moe, without_gil([&] {
            return moe->prepare_without_allgather(ids, weights, values, max_tokens, expert_count,
                                                  slot_count, stream);
          }),
          stream};
}

PyTensor alltoallv(const PyTwoSided& self, nb::handle x, const PyPrepared& prepared,
                   nb::handle stream_argument) {
  const auto moe = self.live(kTwoSided);
  const Exclusive call = self.call(kTwoSided);
  Arrays arrays(stream_argument);
  const TensorView rows = arrays.in(x, "mnnvl_moe_alltoallv: x");
  const Stream stream = arrays.stream(self.device);
  return PyTensor::of(without_gil([&] { return moe->alltoallv(rows, prepared->info, stream); }),
                      stream);
}

PyTensor alltoallv_combine(const PyTwoSided& self, nb::handle x, const PyPrepared& prepared,
                           nb::handle stream_argument) {
  const auto moe = self.live(kTwoSided);
  const Exclusive call = self.call(kTwoSided);
  Arrays arrays(stream_argument);
  const TensorView rows = arrays.in(x, "mnnvl_moe_alltoallv_combine: x");
  const Stream stream = arrays.stream(self.device);
  return PyTensor::of(
      without_gil([&] { return moe->alltoallv_combine(rows, prepared->info, stream); }), stream);
}

void bind_one_sided(nb::module_& m) {
  nb::class_<PyOneSided>(m, "OneSidedAllToAll",
                         "What is behind switchyard.compat.flashinfer.MoeAlltoAll.")
      .def(
          "__init__",
          [](PyOneSided* self, const PyGroup& group, nb::handle device, std::int64_t max_tokens,
             std::int32_t top_k, std::int32_t num_experts) {
            new (self) PyOneSided{make_compat<MoeAlltoAll>(
                group, device,
                flashinfer::MoeAlltoAllOptions{
                    .max_num_tokens = max_tokens, .top_k = top_k, .num_experts = num_experts})};
          },
          nb::arg("group"), nb::arg("device"), nb::arg("max_tokens"), nb::arg("top_k"),
          nb::arg("num_experts"),
          nb::sig("def __init__(self, group: Group, device: DeviceLike, max_tokens: int, top_k: "
                  "int, num_experts: int) -> None"))
      .def("dispatch", &dispatch, nb::arg("token_selected_experts"), nb::arg("payloads"),
           nb::arg("max_tokens"), nb::arg("invalid_expert_id").none(), nb::arg("id_payload"),
           nb::arg("stream").none() = nb::none())
      .def_prop_ro("recv_counts",
                   [](const PyOneSided& self) {
                     const auto moe = self.live(kOneSided);
                     return PyTensor{moe->recv_counts(), moe, self.dispatched};
                   })
      .def("combine", &combine, nb::arg("payload"), nb::arg("stream").none() = nb::none())
      .def("close", [](PyOneSided& self) { self.object.close(kOneSided); });
  m.def("one_sided_workspace_size", &MoeAlltoAll::get_workspace_size_per_rank, nb::arg("ep_size"),
        nb::arg("max_num_tokens"), nb::arg("dispatch_bytes"), nb::arg("combine_bytes"),
        nb::arg("aux_bytes"));
}

void bind_two_sided(nb::module_& m) {
  const auto info = [](Tensor flashinfer::MoEAlltoallInfo::*member) {
    return [member](const PyPrepared& self) { return self.tensor(self->info.*member); };
  };
  using Info = flashinfer::MoEAlltoallInfo;
  nb::class_<PyPrepared>(m, "TwoSidedPrepared")
      .def_prop_ro("send_rank_count_cumsum", info(&Info::send_rank_count_cumsum))
      .def_prop_ro("send_rank_local_indices", info(&Info::send_rank_local_indices))
      .def_prop_ro("recv_rank_count_cumsum", info(&Info::recv_rank_count_cumsum))
      .def_prop_ro("recv_rank_local_indices", info(&Info::recv_rank_local_indices))
      .def_prop_ro("backward_recv_rank_local_indices",
                   info(&Info::backward_recv_rank_local_indices))
      .def_prop_ro("local_token_allocation_count",
                   [](const PyPrepared& self) { return self->info.local_token_allocation_count; })
      .def_prop_ro("expert_ids",
                   [](const PyPrepared& self) { return self.tensor(self->expert_ids); })
      .def_prop_ro("scales", [](const PyPrepared& self) { return self.tensor(self->scales); })
      .def_prop_ro("gathered_expert_statics", [](const PyPrepared& self) {
        return self.tensor(self->gathered_expert_statics);
      });
  nb::class_<PyTwoSided>(m, "TwoSidedAllToAll",
                         "What is behind switchyard.compat.flashinfer.MnnvlMoe.")
      .def(
          "__init__",
          [](PyTwoSided* self, const PyGroup& group, nb::handle device, std::int64_t max_tokens) {
            new (self) PyTwoSided(make_compat<MnnvlMoe>(
                group, device,
                flashinfer::MnnvlMoeOptions{.max_token_count_per_rank = max_tokens}));
          },
          nb::arg("group"), nb::arg("device"), nb::arg("max_tokens"),
          nb::sig("def __init__(self, group: Group, device: DeviceLike, max_tokens: int) -> None"))
      .def("prepare", &prepare, nb::arg("expert_ids"), nb::arg("scales").none(),
           nb::arg("expert_statics").none(), nb::arg("max_tokens"), nb::arg("expert_count"),
           nb::arg("slot_count"), nb::arg("stream").none() = nb::none())
      .def("alltoallv", &alltoallv, nb::arg("x"), nb::arg("prepared"),
           nb::arg("stream").none() = nb::none())
      .def("alltoallv_combine", &alltoallv_combine, nb::arg("x"), nb::arg("prepared"),
           nb::arg("stream").none() = nb::none())
      .def("close", [](PyTwoSided& self) { self.object.close(kTwoSided); });
}

}  // namespace

void bind_compat_flashinfer(nb::module_& m) {
  bind_one_sided(m);
  bind_two_sided(m);
}

}  // namespace switchyard::python
