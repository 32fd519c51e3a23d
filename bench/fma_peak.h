// SPDX-License-Identifier: Apache-2.0
//
// fma_peak.h: what one core can do at most, the measure of a GEMM.
#pragma once

namespace switchyard {

/// Highest rate of f32 fused multiply-adds on registers, in operations a second (2 for each fma),
/// with the widest vectors of this processor. Measured once; takes about 20 ms.
double peak_fma_rate();

}  // namespace switchyard
