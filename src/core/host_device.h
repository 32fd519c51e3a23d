// SPDX-License-Identifier: Apache-2.0
//
// host_device.h: marks functions that serve both processors.
#pragma once

#if defined(__CUDACC__)
#define SWITCHYARD_HOST_DEVICE __host__ __device__
#else
#define SWITCHYARD_HOST_DEVICE
#endif
