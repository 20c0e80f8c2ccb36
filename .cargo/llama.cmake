# Included by llama.cpp's own build after each of its `project` commands (CMAKE_PROJECT_INCLUDE in config.toml).
# Leaves out what we do not use. The kernels (ggml) are optimised as config.toml says. The library around them builds
# graphs and reads files; it is optimised as far as the cargo profile optimises dependencies.

if (NOT PROJECT_NAME STREQUAL "llama.cpp")
    return()
endif()

# In a folder that was configured before, CMake would keep the flags of that time.
foreach (language IN ITEMS C CXX)
    if (DEFINED ENV{CMAKE_${language}_FLAGS_RELEASE})
        set(CMAKE_${language}_FLAGS_RELEASE "$ENV{CMAKE_${language}_FLAGS_RELEASE}")
    endif()
endforeach()

# Kernels are a library that the engine loads. The crate asks for one for each kind of CPU.
if (GGML_ADRIATICUM_KERNELS STREQUAL native)
    set(GGML_CPU_ALL_VARIANTS OFF CACHE BOOL "" FORCE)
endif()

# Our own products take its place where there are any.
if (CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(GGML_CPU_REPACK OFF CACHE BOOL "" FORCE)
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
    # Except for what is done for every step: which cells a token sees, for one.
    foreach (file IN ITEMS llama-batch llama-context llama-graph llama-kv-cache)
        set_source_files_properties(${CMAKE_SOURCE_DIR}/src/${file}.cpp TARGET_DIRECTORY llama
            PROPERTIES COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
    endforeach()
endfunction()
cmake_language(DEFER CALL adriaticum_adapt_llama)

# Libraries without a version in their names. Otherwise their plain names are links, which the crate puts into cargo's
# folder without what they point to, and the next time fails to put there.
function(adriaticum_name_libraries)
    foreach (target IN ITEMS llama ggml ggml-base)
        set_property(TARGET ${target} PROPERTY VERSION)
        set_property(TARGET ${target} PROPERTY SOVERSION)
    endforeach()
    # Where kernels are is told at run time; the folder of the build has no place in a release.
    foreach (property IN ITEMS COMPILE_DEFINITIONS INTERFACE_COMPILE_DEFINITIONS)
        get_target_property(definitions ggml ${property})
        list(FILTER definitions EXCLUDE REGEX "^GGML_BACKEND_DIR=")
        set_target_properties(ggml PROPERTIES ${property} "${definitions}")
    endforeach()
endfunction()
cmake_language(DEFER CALL adriaticum_name_libraries)

# Some functions of the kernels are replaced by our own (crates/kernels/native), in each library of kernels that is built.
# The library's are renamed, so that ours can call them.
function(adriaticum_hook_kernels)
    get_property(targets DIRECTORY ggml/src PROPERTY BUILDSYSTEM_TARGETS)
    list(FILTER targets INCLUDE REGEX "^ggml-cpu")
    list(FILTER targets EXCLUDE REGEX "-feats$")
    if (NOT targets) # kernels for GPUs alone are built
        return()
    endif()
    foreach (target IN LISTS targets)
        target_sources(${target} PRIVATE ${ADRIATICUM_ROOT}/crates/kernels/native/hook.c)
        target_include_directories(${target} PRIVATE ggml/src/ggml-cpu)
    endforeach()
    adriaticum_rename(ops.cpp ggml_compute_forward_flash_attn_ext adriaticum_library_attention)
    adriaticum_rename(ggml-cpu.c ggml_graph_plan adriaticum_library_graph_plan)
    adriaticum_rename(traits.cpp ggml_cpu_extra_compute_forward adriaticum_library_extra_compute)
    adriaticum_rename(traits.cpp ggml_cpu_extra_work_size adriaticum_library_extra_size)
endfunction()
function(adriaticum_rename file name other)
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/ggml/src/ggml-cpu/${file} TARGET_DIRECTORY ${targets} APPEND PROPERTY
        COMPILE_DEFINITIONS ${name}=${other})
endfunction()

# Libraries of kernels for GPUs are built at other times (tools/gpu), and must be of the same build.
function(adriaticum_name_builds)
    file(STRINGS ${CMAKE_SOURCE_DIR}/../Cargo.toml version REGEX "^version = " LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9][0-9.]*" version "${version}")
    foreach (target IN ITEMS ggml-base ggml-cuda ggml-hip ggml-vulkan)
        if (TARGET ${target})
            set(name adriaticum_gpu_build)
            if (target STREQUAL "ggml-base")
                set(name adriaticum_base_build)
            endif()
            add_library(${target}-build OBJECT ${ADRIATICUM_ROOT}/crates/kernels/native/build.c)
            set_target_properties(${target}-build PROPERTIES POSITION_INDEPENDENT_CODE ON)
            target_compile_definitions(${target}-build PRIVATE
                ADRIATICUM_NAME=${name} ADRIATICUM_BUILD="${version}-$ENV{GGML_ADRIATICUM_CHANGES}")
            target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}-build>)
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL adriaticum_name_builds)

# So that Vulkan's kernels compile with older headers.
function(adriaticum_adapt_vulkan)
    if (TARGET ggml-vulkan)
        target_compile_options(ggml-vulkan PRIVATE -include ${ADRIATICUM_ROOT}/crates/kernels/native/vulkan_layer_settings.hpp)
    endif()
endfunction()
cmake_language(DEFER CALL adriaticum_adapt_vulkan)
get_filename_component(ADRIATICUM_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
cmake_language(DEFER CALL adriaticum_hook_kernels)
