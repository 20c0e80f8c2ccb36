# Read by llama.cpp's own build (CMAKE_PROJECT_INCLUDE in config.toml) after each of its `project` commands. Leaves out what
# nothing of ours uses, and optimises by part: the kernels (ggml) as config.toml says; the library around them, which builds
# graphs and reads files, as far as the cargo profile optimises dependencies.

if (NOT PROJECT_NAME STREQUAL "llama.cpp")
    return()
endif()

# Argument parsing, downloads and chat parsers of llama.cpp's own programs.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)

function(adriaticum_adapt_llama)
    # Most files spend their time on the same headers.
    target_precompile_headers(llama PRIVATE
        <algorithm> <functional> <map> <memory> <regex> <sstream> <string> <unordered_map> <vector>)
    if (DEFINED ENV{OPT_LEVEL}) # cargo tells build scripts
        target_compile_options(llama PRIVATE -O$ENV{OPT_LEVEL})
    endif()
endfunction()
cmake_language(DEFER CALL adriaticum_adapt_llama)
