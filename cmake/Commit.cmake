# switchyard_commit: the commit of this tree, for result files. A library of its own, so that a new commit compiles one
# small file and links only the programs that write results.
set(commit_source ${PROJECT_BINARY_DIR}/commit.cpp)
add_custom_target(switchyard_commit_source
  BYPRODUCTS ${commit_source}
  COMMAND ${CMAKE_COMMAND} -D ROOT=${PROJECT_SOURCE_DIR} -D OUT=${commit_source} -P ${CMAKE_CURRENT_LIST_DIR}/WriteCommit.cmake
  COMMENT "Commit of this tree")
add_library(switchyard_commit STATIC ${commit_source})
set_source_files_properties(${commit_source} PROPERTIES GENERATED TRUE)
add_dependencies(switchyard_commit switchyard_commit_source)
target_include_directories(switchyard_commit PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_compile_features(switchyard_commit PUBLIC cxx_std_20)
