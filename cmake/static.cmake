# For programs that will run on another machine: prefer static libraries. Use with -DCMAKE_PROJECT_INCLUDE=cmake/static.cmake
set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
set(CMAKE_EXE_LINKER_FLAGS "${CMAKE_EXE_LINKER_FLAGS} -static-libgcc")
