# Included by llama.cpp's own build after each of its `project` commands (CMAKE_PROJECT_INCLUDE in config.toml).
# Leaves out what we do not use. The kernels (ggml) are optimised as config.toml says. The library around them builds
# graphs and reads files; it is optimised as far as the cargo profile optimises dependencies.

if (NOT PROJECT_NAME STREQUAL "llama.cpp")
    return()
endif()

# Only llama.cpp's own programs need this: argument parsing, downloads, chat parsers.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)

function(adriaticum_adapt_llama)
    # Most of the compile time goes into the same headers.
    target_precompile_headers(llama PRIVATE
        <algorithm> <functional> <map> <memory> <regex> <sstream> <string> <unordered_map> <vector>)
    if (DEFINED ENV{OPT_LEVEL}) # set by cargo for build scripts
        target_compile_options(llama PRIVATE -O$ENV{OPT_LEVEL})
    endif()
endfunction()
cmake_language(DEFER CALL adriaticum_adapt_llama)
