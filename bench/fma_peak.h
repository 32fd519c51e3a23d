// SPDX-License-Identifier: Apache-2.0
//
// fma_peak.h: the peak rate of one core, the yardstick of a GEMM.
#pragma once

namespace switchyard {

/// The highest rate of f32 fused multiply-adds in registers, in operations per second (2 per fma),
/// with the widest vectors of this processor. Measured once, in about 20 ms.
double peak_fma_rate();

}  // namespace switchyard
