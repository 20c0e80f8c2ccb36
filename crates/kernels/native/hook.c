// Compiled into llama.cpp's CPU kernels (.cargo/llama.cmake). Some of their functions are renamed, and those here are called
// in their place: attention and products with weights go to the functions that were installed, or to the library's where
// there are none or they do not apply; and a graph is computed with no more threads than the limit. The structs are declared
// once more in src/hook.rs: keep them equal.

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "traits.h"

#include <stdatomic.h>

// The threads that compute an operation together, as one of them sees it.
struct adriaticum_team {
    int32_t thread, threads;
    struct ggml_threadpool * pool;
    void (*barrier)(struct ggml_threadpool *);
    void (*set_chunk)(struct ggml_threadpool *, int);
    int  (*add_chunk)(struct ggml_threadpool *, int);
};

struct adriaticum_attention {
    const char * q;
    const char * k;
    const char * v;
    const char * mask;  // NULL if every cell is visible
    const char * sinks; // NULL if there are none
    char *       out;
    int64_t tokens, heads, kv_heads, cells, key_size, value_size;
    // In bytes.
    size_t q_token, q_head, k_cell, k_head, v_cell, v_head, mask_token, out_row;
    float   scale;
    int32_t number; // of the cache: 0 is f32, 1 is f16, 2 is bf16
    float * scratch;
    size_t  scratch_floats;
    struct adriaticum_team team;
};

// Rows times a matrix of weights; or each row times some of many matrices (experts).
struct adriaticum_product {
    const char * weights;
    void **      laid_out; // ours to use, NULL at first
    const char * rows;
    const char * chosen;   // for each token, the numbers of its experts; NULL if there is one for all
    char *       out;
    int64_t columns, outputs, experts; // of a row, and of the weights
    int64_t tokens, used, rows_of_token; // used: experts of a token; each has a row, or they share the only one
    size_t  weights_row, weights_expert, row, token, chosen_token, out_row, out_token; // in bytes
    int32_t type;
    void (*to_floats)(const void *, float *, int64_t);
    char *  scratch;
    struct adriaticum_team team;
};

typedef bool   (*adriaticum_attention_kernel)(const struct adriaticum_attention *);
typedef void   (*adriaticum_product_kernel)(const struct adriaticum_product *);
typedef size_t (*adriaticum_product_scratch)(const struct adriaticum_product *); // in bytes; 0 if it is not of our kind

struct adriaticum_changes {
    adriaticum_attention_kernel attention; // NULL for the library's
    adriaticum_product_kernel   product;   // NULL for the library's
    adriaticum_product_scratch  product_scratch;
    int32_t max_threads;                   // 0 for no limit
};

static _Atomic(adriaticum_attention_kernel) installed_attention;
static _Atomic(adriaticum_product_kernel)   installed_product;
static _Atomic(adriaticum_product_scratch)  installed_product_scratch;
static atomic_int max_threads;

GGML_API void adriaticum_change(const struct adriaticum_changes * changes);
void adriaticum_library_attention(const struct ggml_compute_params * params, struct ggml_tensor * dst);
void ggml_compute_forward_flash_attn_ext(const struct ggml_compute_params * params, struct ggml_tensor * dst);
struct ggml_cplan adriaticum_library_graph_plan(const struct ggml_cgraph * graph, int threads, struct ggml_threadpool * pool);
bool adriaticum_library_extra_compute(struct ggml_compute_params * params, struct ggml_tensor * op);
bool adriaticum_library_extra_size(int threads, const struct ggml_tensor * op, size_t * size);

void adriaticum_change(const struct adriaticum_changes * changes) {
    atomic_store(&installed_attention, changes->attention);
    atomic_store(&installed_product, changes->product);
    atomic_store(&installed_product_scratch, changes->product_scratch);
    atomic_store(&max_threads, changes->max_threads);
}

struct ggml_cplan ggml_graph_plan(const struct ggml_cgraph * graph, int threads, struct ggml_threadpool * pool) {
    const int limit = atomic_load(&max_threads);
    return adriaticum_library_graph_plan(graph, limit > 0 && limit < threads ? limit : threads, pool);
}

static struct adriaticum_team team_of(const struct ggml_compute_params * params) {
    return (struct adriaticum_team) {
        .thread = params->ith, .threads = params->nth, .pool = params->threadpool,
        .barrier = ggml_barrier, .set_chunk = ggml_threadpool_chunk_set, .add_chunk = ggml_threadpool_chunk_add,
    };
}

static int32_t number_of(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:  return 0;
        case GGML_TYPE_F16:  return 1;
        case GGML_TYPE_BF16: return 2;
        default:             return -1;
    }
}

// Whether the operation is of the common kind: no biases by distance, no soft cap, one mask for all heads.
static bool applies(const struct ggml_compute_params * params, const struct ggml_tensor * dst) {
    const struct ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * mask = dst->src[3];
    const float * options = (const float *) dst->op_params;
    return !params->use_ref && options[1] == 0.0f && options[2] == 0.0f
        && q->type == GGML_TYPE_F32 && k->type == v->type && number_of(k->type) >= 0
        && q->ne[3] == 1 && k->ne[3] == 1 && v->ne[3] == 1
        && k->ne[2] == v->ne[2] && q->ne[2] % k->ne[2] == 0
        && q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type) && v->nb[0] == ggml_type_size(v->type)
        && (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 && mask->ne[2] == 1 && mask->ne[3] == 1));
}

void ggml_compute_forward_flash_attn_ext(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    adriaticum_attention_kernel kernel = atomic_load_explicit(&installed_attention, memory_order_relaxed);
    if (kernel && applies(params, dst)) {
        const struct ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2];
        const struct ggml_tensor * mask = dst->src[3], * sinks = dst->src[4];
        const struct adriaticum_attention call = {
            .q = q->data, .k = k->data, .v = v->data,
            .mask = mask ? mask->data : NULL, .sinks = sinks ? sinks->data : NULL, .out = dst->data,
            .tokens = q->ne[1], .heads = q->ne[2], .kv_heads = k->ne[2], .cells = k->ne[1],
            .key_size = k->ne[0], .value_size = v->ne[0],
            .q_token = q->nb[1], .q_head = q->nb[2], .k_cell = k->nb[1], .k_head = k->nb[2],
            .v_cell = v->nb[1], .v_head = v->nb[2], .mask_token = mask ? mask->nb[1] : 0, .out_row = dst->nb[1],
            .scale = ((const float *) dst->op_params)[0], .number = number_of(k->type),
            .scratch = params->wdata, .scratch_floats = params->wsize / sizeof(float), .team = team_of(params),
        };
        if (kernel(&call)) {
            return;
        }
    }
    adriaticum_library_attention(params, dst);
}

// The product, if the weights are plain matrices in memory.
static bool product_of(const struct ggml_tensor * op, struct adriaticum_product * product) {
    const bool has_experts = op->op == GGML_OP_MUL_MAT_ID;
    if (op->op != GGML_OP_MUL_MAT && !has_experts) {
        return false;
    }
    struct ggml_tensor * weights = op->src[0];
    const struct ggml_tensor * rows = op->src[1], * chosen = has_experts ? op->src[2] : NULL;
    if (!weights->buffer || weights->op != GGML_OP_NONE || weights->view_src
        || ggml_backend_buffer_get_usage(weights->buffer) != GGML_BACKEND_BUFFER_USAGE_WEIGHTS
        || !ggml_backend_buffer_is_host(weights->buffer) || !ggml_is_contiguous(weights)
        || weights->ne[3] != 1 || rows->ne[3] != 1 || (!has_experts && (weights->ne[2] != 1 || rows->ne[2] != 1))
        || rows->type != GGML_TYPE_F32 || rows->nb[0] != sizeof(float) || op->type != GGML_TYPE_F32) {
        return false;
    }
    *product = (struct adriaticum_product) {
        .weights = weights->data, .laid_out = &weights->extra, .rows = rows->data,
        .chosen = chosen ? chosen->data : NULL, .out = op->data,
        .columns = rows->ne[0], .outputs = weights->ne[1], .experts = weights->ne[2],
        .tokens = rows->ne[has_experts ? 2 : 1], .used = chosen ? chosen->ne[0] : 1,
        .rows_of_token = has_experts ? rows->ne[1] : 1,
        .weights_row = weights->nb[1], .weights_expert = weights->nb[2],
        .row = rows->nb[1], .token = rows->nb[has_experts ? 2 : 1], .chosen_token = chosen ? chosen->nb[1] : 0,
        .out_row = op->nb[1], .out_token = op->nb[has_experts ? 2 : 1],
        .type = weights->type, .to_floats = ggml_get_type_traits(weights->type)->to_float,
    };
    return true;
}

// Asked for every operation before the library looks at it.
bool ggml_cpu_extra_compute_forward(struct ggml_compute_params * params, struct ggml_tensor * op) {
    adriaticum_product_kernel  kernel  = atomic_load_explicit(&installed_product, memory_order_relaxed);
    adriaticum_product_scratch scratch = atomic_load_explicit(&installed_product_scratch, memory_order_relaxed);
    struct adriaticum_product product;
    if (kernel && !params->use_ref && product_of(op, &product) && scratch(&product) > 0) {
        product.scratch = params->wdata;
        product.team = team_of(params);
        kernel(&product);
        return true;
    }
    return adriaticum_library_extra_compute(params, op);
}

bool ggml_cpu_extra_work_size(int threads, const struct ggml_tensor * op, size_t * size) {
    adriaticum_product_scratch scratch = atomic_load_explicit(&installed_product_scratch, memory_order_relaxed);
    struct adriaticum_product product;
    if (scratch && product_of(op, &product)) {
        const size_t needed = scratch(&product);
        if (needed > 0) {
            *size = needed;
            return true;
        }
    }
    return adriaticum_library_extra_size(threads, op, size);
}
