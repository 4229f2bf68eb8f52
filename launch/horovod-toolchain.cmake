# Horovod 0.28.1 asks for C++14, torch 2.13 needs C++20. CMake puts its own -std flag after
# CXXFLAGS, so only the compile rule itself can put ours last.
set(CMAKE_CXX_COMPILE_OBJECT
    "<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -std=gnu++20 -o <OBJECT> -c <SOURCE>")
