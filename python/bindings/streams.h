// SPDX-License-Identifier: Apache-2.0
//
// streams.h: which stream a call works in, from the `stream=` argument.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/device.h"
#include "switchyard/stream.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

/// A stream of `device` from what a caller passes: an int (a cudaStream_t), an object with
/// `__cuda_stream__`, `cuda_stream` (torch) or `ptr` (cupy). The host has one stream: on CPUs the
/// argument must be None.
Stream stream_from(nb::handle value, Device device);

/// The stream that torch works in on this GPU now.
Stream torch_stream(Device device);

/// New uint8 memory of torch on the GPU of `stream`, which torch reuses behind the work of
/// `stream`.
nb::object empty_torch(std::size_t num_bytes, Stream stream);

/// Torch gives the memory of a freed GPU tensor to others only behind what `stream` has by then.
void record_stream(nb::handle tensor, Stream stream);

/// As DLPack numbers streams: 1 is the legacy default stream, 2 the one per thread.
std::intptr_t dlpack_number(Stream stream);
Stream stream_from_dlpack(std::intptr_t number, Device device);

/// Work in `second` from now on waits for what is in `first` now. No wait on the host.
void order(Stream first, Stream second);

}  // namespace switchyard::python
