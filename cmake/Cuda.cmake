# The CUDA language and the module with everything that runs on a GPU. The arithmetic promise holds there too: no
# contraction of a * b + c. The library itself never links CUDA: it loads the module, or, in a static build, finds its
# table in the program.
if(SWITCHYARD_WITH_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 90-virtual CACHE STRING "GPU architectures to compile for")
  enable_language(CUDA)
  find_package(CUDAToolkit 12.4 REQUIRED)
  set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -std=c++20 --fmad=false --expt-relaxed-constexpr")
  if(SWITCHYARD_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${SWITCHYARD_CCACHE})
  endif()
endif()
