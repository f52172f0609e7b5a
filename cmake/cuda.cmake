# The CUDA backend, included when NIB_CUDA is on: objects of src/backend/cuda for the library, the static runtime at link
# time. Each architecture folder is compiled for its own targets only; any/ for all of them. Products and sums are not
# fused unless the source says so, as on the CPU.
enable_language(CUDA)
find_path(NIB_CUDA_INCLUDE cuda_runtime_api.h HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} /usr/local/cuda/include REQUIRED)
find_library(NIB_CUDART cudart_static HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} /usr/local/cuda/lib64 /usr/local/cuda/lib REQUIRED)
find_package(Threads REQUIRED)

# Machine code for every card that this backend runs on, in one program: sm_90a for H100 and H200, sm_100f for all of
# compute capability 10.x (B200, GB200, B300, GB300), sm_120f for all of 12.x (RTX PRO 6000, RTX 50, GB10).
set(NIB_CUDA_TARGETS "sm_90a;sm_100f;sm_120f" CACHE STRING
  "GPU targets, of sm_90a, sm_100f, sm_100a, sm_103a, sm_120f, sm_120a and sm_121a")
set(gencode)
foreach(target IN LISTS NIB_CUDA_TARGETS)
  string(REPLACE "sm_" "compute_" virtual ${target})
  list(APPEND gencode "SHELL:-gencode arch=${virtual},code=${target}")
endforeach()
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")

set(blackwell ${NIB_CUDA_TARGETS})
list(FILTER blackwell INCLUDE REGEX "^sm_10[03][af]$")

set(rtx ${NIB_CUDA_TARGETS})
list(FILTER rtx INCLUDE REGEX "^sm_12[01][af]$")

file(GLOB cuda_c CONFIGURE_DEPENDS src/backend/cuda/*.c src/backend/cuda/blackwell/*.c)
if(blackwell)
  file(GLOB cuda_sm100a_c CONFIGURE_DEPENDS src/backend/cuda/sm100a/*.c)
  list(APPEND cuda_c ${cuda_sm100a_c})
endif()
if(rtx)
  file(GLOB cuda_sm120a_c CONFIGURE_DEPENDS src/backend/cuda/sm120a/*.c)
  list(APPEND cuda_c ${cuda_sm120a_c})
endif()
file(GLOB cuda_any CONFIGURE_DEPENDS src/backend/cuda/any/*.cu)
add_library(nib_backend_cuda OBJECT ${cuda_c} ${cuda_any})
target_include_directories(nib_backend_cuda PUBLIC include src)
target_include_directories(nib_backend_cuda SYSTEM PUBLIC ${NIB_CUDA_INCLUDE})
target_compile_options(nib_backend_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Werror -ffp-contract=off -fopenmp>
  "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xcompiler=-Wall,-Wextra,-fno-threadsafe-statics,-fno-exceptions;${gencode}>")
string(REPLACE ";" ", " target_names "${NIB_CUDA_TARGETS}")
target_compile_definitions(nib_backend_cuda PRIVATE NIB_CUDA_TARGET_NAMES="${target_names}" $<$<COMPILE_LANGUAGE:C>:_POSIX_C_SOURCE=200809L _DEFAULT_SOURCE>)
set_target_properties(nib_backend_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)

# Hopper's own kernels: their instructions exist for no other target.
file(GLOB cuda_sm90a CONFIGURE_DEPENDS src/backend/cuda/sm90a/*.cu)
if("sm_90a" IN_LIST NIB_CUDA_TARGETS)
  add_library(nib_backend_cuda_sm90a OBJECT ${cuda_sm90a})
  target_include_directories(nib_backend_cuda_sm90a PRIVATE include src)
  target_compile_options(nib_backend_cuda_sm90a PRIVATE
    "-fmad=false;-Xcompiler=-Wall,-Wextra,-fno-threadsafe-statics,-fno-exceptions;SHELL:-gencode arch=compute_90a,code=sm_90a")
  set_target_properties(nib_backend_cuda_sm90a PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(nib_backend_cuda PRIVATE NIB_CUDA_SM90A)
  list(APPEND NIB_OBJECTS $<TARGET_OBJECTS:nib_backend_cuda_sm90a>)
endif()

# Blackwell's: tcgen05.
if(blackwell)
  set(blackwell_gencode)
  foreach(target IN LISTS blackwell)
    string(REPLACE "sm_" "compute_" virtual ${target})
    list(APPEND blackwell_gencode "SHELL:-gencode arch=${virtual},code=${target}")
  endforeach()
  file(GLOB cuda_sm100a CONFIGURE_DEPENDS src/backend/cuda/sm100a/*.cu)
  add_library(nib_backend_cuda_sm100a OBJECT ${cuda_sm100a})
  target_include_directories(nib_backend_cuda_sm100a PRIVATE include src)
  target_compile_options(nib_backend_cuda_sm100a PRIVATE
    "-fmad=false;-Xcompiler=-Wall,-Wextra,-fno-threadsafe-statics,-fno-exceptions;${blackwell_gencode}")
  set_target_properties(nib_backend_cuda_sm100a PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(nib_backend_cuda PRIVATE NIB_CUDA_SM100A)
  list(APPEND NIB_OBJECTS $<TARGET_OBJECTS:nib_backend_cuda_sm100a>)
endif()

# RTX's and GB10's: block-scaled mma.sync.
if(rtx)
  set(rtx_gencode)
  foreach(target IN LISTS rtx)
    string(REPLACE "sm_" "compute_" virtual ${target})
    list(APPEND rtx_gencode "SHELL:-gencode arch=${virtual},code=${target}")
  endforeach()
  file(GLOB cuda_sm120a CONFIGURE_DEPENDS src/backend/cuda/sm120a/*.cu)
  add_library(nib_backend_cuda_sm120a OBJECT ${cuda_sm120a})
  target_include_directories(nib_backend_cuda_sm120a PRIVATE include src)
  target_compile_options(nib_backend_cuda_sm120a PRIVATE
    "-fmad=false;-Xcompiler=-Wall,-Wextra,-fno-threadsafe-statics,-fno-exceptions;${rtx_gencode}")
  set_target_properties(nib_backend_cuda_sm120a PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(nib_backend_cuda PRIVATE NIB_CUDA_SM120A)
  list(APPEND NIB_OBJECTS $<TARGET_OBJECTS:nib_backend_cuda_sm120a>)
endif()

list(APPEND NIB_OBJECTS $<TARGET_OBJECTS:nib_backend_cuda>)
target_compile_definitions(nib_backend PRIVATE NIB_CUDA)
set(NIB_CUDA_LIBRARIES ${NIB_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
