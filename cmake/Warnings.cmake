# Flags for our own targets: warnings, the arithmetic promise, sanitizers. Nothing here is exported.
add_library(switchyard_flags INTERFACE)
target_compile_features(switchyard_flags INTERFACE cxx_std_20)
# A fused multiply-add happens only where the source says fma; no fast-math, no flush to zero.
target_compile_options(switchyard_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
target_compile_options(
  switchyard_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wsign-conversion;-Wnon-virtual-dtor>)
# In a unit of several sources (Unite.cmake) a local name may be that of another source.
set(is_united $<BOOL:$<TARGET_PROPERTY:SWITCHYARD_UNITED>>)
target_compile_options(
  switchyard_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:${is_united}>>:-Wshadow>
                             $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,${is_united}>:-Wshadow=local>)
# g++ 12 reports overlaps in std::string's operator+ that do not exist (GCC bug 105651).
target_compile_options(switchyard_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(SWITCHYARD_WARNINGS_AS_ERRORS)
  target_compile_options(switchyard_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(SWITCHYARD_SANITIZE)
  target_compile_options(switchyard_flags INTERFACE -fsanitize=${SWITCHYARD_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=all)
  target_link_options(switchyard_flags INTERFACE -fsanitize=${SWITCHYARD_SANITIZE})
  # Functions with many loads and stores, those of vectors, call the checks: clang compiles them in half the time.
  if(SWITCHYARD_SANITIZE MATCHES "address")
    target_compile_options(switchyard_flags INTERFACE
      $<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-mllvm -asan-instrumentation-with-call-threshold=500>)
  endif()
  # Optimising takes clang half of its time. Tests, commands and predictions hardly run.
  set(SWITCHYARD_COLD_OPTIONS -O0)
endif()
