# The CUDA language, for preset cuda. The arithmetic promise holds there too: no contraction of a * b + c.
if(SWITCHYARD_WITH_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "")
  enable_language(CUDA)
  set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -std=c++20 --fmad=false --expt-relaxed-constexpr")
endif()
