// Compiled into libggml-base and into every library of kernels for GPUs (.cargo/llama.cmake), so that the program can tell
// whether they were built from the same sources with the same changes. ADRIATICUM_NAME differs: the loader would otherwise
// find the first one for both.

__attribute__((visibility("default"))) const char * ADRIATICUM_NAME(void);

const char * ADRIATICUM_NAME(void) {
    return ADRIATICUM_BUILD;
}
