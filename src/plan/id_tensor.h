// SPDX-License-Identifier: Apache-2.0
//
// id_tensor.h: tensors of expert ids, i32 or i64, read and written as i64.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "switchyard/tensor.h"

#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"

namespace switchyard {

/// Ids on any device. Errors: kInvalidArgument unless `view` is i32 or i64, contiguous, with
/// memory.
inline void require_ids(const char* function, const char* name, const TensorView& view) {
  const bool are_ids = view.dtype() == DType::kI64 || view.dtype() == DType::kI32;
  require(view.has_value() && are_ids && view.is_contiguous(), Errc::kInvalidArgument,
          "{}: {} is {}, must be i32 or i64, contiguous", function, name, view);
  require(view.data() != nullptr || view.num_elements() == 0, Errc::kInvalidArgument,
          "{}: {} is {} at a null pointer, must have memory", function, name, view);
}

class IdTensor {
 public:
  /// Errors: as require_ids; kInvalidArgument unless `view` is in host memory.
  IdTensor(const char* function, const char* name, const TensorView& view)
      : data_(static_cast<std::byte*>(view.data())), is_wide_(view.dtype() == DType::kI64) {
    require_ids(function, name, view);
    require_host(function, {{name, view}});
  }

  // Access by memcpy, so ids may be unaligned.
  std::int64_t operator[](std::int64_t i) const {
    return is_wide_ ? load<std::int64_t>(i) : load<std::int32_t>(i);
  }
  void set(std::int64_t i, std::int64_t value) const {
    is_wide_ ? store(i, value) : store(i, static_cast<std::int32_t>(value));
  }
  bool can_hold(std::int64_t value) const {
    return is_wide_ || (value >= std::numeric_limits<std::int32_t>::min() &&
                        value <= std::numeric_limits<std::int32_t>::max());
  }

 private:
  template <typename T>
  T load(std::int64_t i) const {
    T value{};
    std::memcpy(&value, data_ + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  template <typename T>
  void store(std::int64_t i, T value) const {
    std::memcpy(data_ + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  }

  std::byte* data_;
  bool is_wide_;
};

/// out[i] = map(i, ids[i]) for ids that are not negative; negative ids are copied. A first pass
/// finds every error, so nothing is written if there is one.
///
/// Errors: kInvalidArgument (shape, dtype, an id >= num_ids, a result that does not fit into i32,
/// one memory seen with two dtypes).
template <typename Map>
void map_ids(const char* function, const TensorView& ids, std::int64_t num_ids,
             const TensorView& out, Map map) {
  const IdTensor from(function, "ids", ids);
  const IdTensor to(function, "out", out);
  bool is_same_shape = ids.num_dims() == out.num_dims();
  for (int d = 0; is_same_shape && d < ids.num_dims(); ++d) {
    is_same_shape = ids.shape(d) == out.shape(d);
  }
  require(is_same_shape, Errc::kInvalidArgument, "{}: out is {}, must be the shape of ids, {}",
          function, out, ids);
  const std::int64_t count = ids.num_elements();
  const bool is_widened_in_place = ids.data() == out.data() && ids.dtype() != out.dtype();
  require(!is_widened_in_place || count == 0, Errc::kInvalidArgument,
          "{}: ids and out share memory as {} and {}, must be one dtype", function,
          name_of(ids.dtype()), name_of(out.dtype()));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = from[i];
    require(id < num_ids, Errc::kInvalidArgument,
            "{}: element {} of ids is {}, must be below {}, or negative for none", function, i, id,
            num_ids);
    require(to.can_hold(id < 0 ? id : map(i, id)), Errc::kInvalidArgument,
            "{}: element {} of ids becomes a value that i32 cannot hold; use i64", function, i);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = from[i];
    to.set(i, id < 0 ? id : map(i, id));
  }
}

}  // namespace switchyard
