include(GoogleTest)
add_custom_target(tsan_tests COMMENT "What ThreadSanitizer is to see")
add_custom_target(cuda_tests COMMENT "What needs nvcc: the tests labelled cuda and what they look at")

# A third of the compiler's time would go into optimising tests, whose own code takes hardly any.
set(SWITCHYARD_TEST_OPTIONS $<$<CONFIG:Release>:-O1> ${SWITCHYARD_COLD_OPTIONS})

# switchyard_add_test(NAME name SOURCES a.cpp ... LABEL unit|tsan|process|slow|cuda [TIMEOUT s] [HOT] [ALONE a.cpp ...])
# One executable; each gtest case becomes a ctest case. A test labelled tsan also runs under ThreadSanitizer.
# HOT: the test itself computes for long; it is optimised like the library.
# ALONE: sources with names of their own that another source of the test has too; they are units of their own.
function(switchyard_add_test)
  cmake_parse_arguments(ARG "HOT" "NAME;LABEL;TIMEOUT" "SOURCES;LIBRARIES;ALONE" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE switchyard_internal switchyard_test_support GTest::gmock GTest::gtest_main
                                            ${ARG_LIBRARIES})
  # g++ 12 at -O3 mistakes the length in a std::vector::assign for unbounded.
  target_compile_options(${ARG_NAME} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overread>)
  if(NOT ARG_HOT)
    target_compile_options(${ARG_NAME} PRIVATE ${SWITCHYARD_TEST_OPTIONS})
  endif()
  switchyard_unite(${ARG_NAME} EXCEPT ${ARG_ALONE})
  # Many tests with processes at a time would wait for each other's sleep: those of one program run one at a time. Tests with
  # GPUs look at what memory is free.
  set(apart)
  if(ARG_LABEL STREQUAL "process")
    set(apart RESOURCE_LOCK ${ARG_NAME})
  elseif(ARG_LABEL STREQUAL "cuda")
    set(apart RUN_SERIAL TRUE)
  endif()
  if(ARG_LABEL MATCHES "^(tsan|cuda)$")
    add_dependencies(${ARG_LABEL}_tests ${ARG_NAME})
  endif()
  gtest_discover_tests(${ARG_NAME} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} ${apart})
endfunction()
