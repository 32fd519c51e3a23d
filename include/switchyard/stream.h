// SPDX-License-Identifier: Apache-2.0
//
// stream.h: a CUDA stream, named without a CUDA header.
//
// A function that takes a Stream works on the GPU that is current for the calling thread: tensors
// are memory of that GPU, work is ordered in the stream, nothing waits for it, and nothing is
// allocated, so it may be captured in a CUDA graph. What differs is said at the function.
#pragma once

#include "switchyard/export.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace switchyard {

class Stream {
 public:
  /// From a cudaStream_t.
  Stream(CUstream_st* stream) noexcept : stream_(stream) {}
  CUstream_st* get() const noexcept { return stream_; }

 private:
  CUstream_st* stream_;
};

}  // namespace switchyard
