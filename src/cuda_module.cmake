# All sources that need CUDA, compiled once: for the module, for its tests and for a static build.
add_library(switchyard_cuda_objects OBJECT)
set_target_properties(
  switchyard_cuda_objects PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                                     CUDA_STANDARD 20)
target_include_directories(switchyard_cuda_objects PUBLIC ${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(switchyard_cuda_objects PUBLIC switchyard_flags fmt::fmt Threads::Threads CUDA::cudart_static)
# PUBLIC: it changes structures that tests of the module see.
if(SWITCHYARD_STAGES)
  target_compile_definitions(switchyard_cuda_objects PUBLIC SWITCHYARD_STAGES)
endif()
foreach(folder cuda heap exchange/push module)
  add_subdirectory(${folder})
endforeach()
switchyard_unite(switchyard_cuda_objects)

# An object library cannot hold the objects of another.
set(SWITCHYARD_CUDA_OBJECTS $<TARGET_OBJECTS:switchyard_cuda_objects> CACHE INTERNAL "all objects of the CUDA module")
if(SWITCHYARD_HAS_CUTLASS)
  set(SWITCHYARD_CUDA_OBJECTS ${SWITCHYARD_CUDA_OBJECTS} $<TARGET_OBJECTS:switchyard_cutlass_objects> CACHE INTERNAL "")
endif()

set(linked_cuda_objects "")
if(SWITCHYARD_CUDA_STATIC)
  set(linked_cuda_objects ${SWITCHYARD_CUDA_OBJECTS})
endif()
