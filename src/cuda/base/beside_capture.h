// SPDX-License-Identifier: Apache-2.0
//
// beside_capture.h: while it lives, the calling thread may take memory beside a stream that it
// captures.
#pragma once

#include <cuda_runtime_api.h>

namespace switchyard::cuda {

class BesideCapture {
 public:
  BesideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;
  ~BesideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace switchyard::cuda
