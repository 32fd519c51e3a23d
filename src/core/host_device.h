// SPDX-License-Identifier: Apache-2.0
//
// host_device.h: marks functions that are compiled for both host and device.
#pragma once

#if defined(__CUDACC__)
#define SWITCHYARD_HOST_DEVICE __host__ __device__
#else
#define SWITCHYARD_HOST_DEVICE
#endif
