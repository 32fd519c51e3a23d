// SPDX-License-Identifier: Apache-2.0

#include "cuda/experts/cublas_api.h"

#include <dlfcn.h>
#include <string>
#include <vector>

#include "core/fail.h"

namespace switchyard::cuda {
namespace {

std::vector<std::string> candidates(const std::string& asked) {
  if (!asked.empty()) return {asked};
  return {"libcublas.so.13", "libcublas.so.12"};
}

// The library stays loaded: the program itself may use it.
void* open_library(const std::string& asked, std::string& path) {
  std::string why;
  for (const std::string& candidate : candidates(asked)) {
    path = candidate;
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    why += (why.empty() ? "" : "; ") + std::string(dlerror());
  }
  fail(Errc::kNotAvailable,
       "cuBLAS cannot be loaded ({}); put its folder into LD_LIBRARY_PATH or set SWITCHYARD_CUBLAS "
       "to its path",
       why);
}

struct Library {
  explicit Library(const std::string& asked) : handle(open_library(asked, path)) {}

  std::string path;
  void* handle;

  template <typename Function>
  bool find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
  template <typename Function>
  void need(Function& function, const char* name) const {
    require(find(function, name), Errc::kNotAvailable, "{} has no {}", path, name);
  }
};

CublasApi load(const std::string& path) {
  const Library library(path);
  CublasApi api;
  library.need(api.create, "cublasCreate_v2");
  library.need(api.destroy, "cublasDestroy_v2");
  library.need(api.set_stream, "cublasSetStream_v2");
  library.need(api.set_workspace, "cublasSetWorkspace_v2");
  library.need(api.set_math_mode, "cublasSetMathMode");
  library.need(api.status_string, "cublasGetStatusString");
  library.need(api.gemm, "cublasGemmEx");
  library.need(api.gemm_strided, "cublasGemmStridedBatchedEx");
  library.find(api.gemm_grouped, "cublasGemmGroupedBatchedEx");
  return api;
}

}  // namespace

const CublasApi& cublas_api(const std::string& path) {
  static const CublasApi api = load(path);
  return api;
}

void check_cublas(const CublasApi& api, CublasStatus status, const char* what) {
  if (status == kCublasSuccess) return;
  fail(Errc::kSystem, "{}: cuBLAS says {}", what, api.status_string(status));
}

}  // namespace switchyard::cuda
