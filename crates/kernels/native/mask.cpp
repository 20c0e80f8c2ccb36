// Compiled into llama.cpp's library (.cargo/llama.cmake), whose function is renamed: which cells each token of a batch sees.
//
// The library looks at every cell for every sequence of the batch: with 64 chats in one cache that is half a million looks
// for each token of all of them, while a GPU waits. Here each cell is looked at once, and is shown to those of the batch
// whose it is; a sequence's later tokens see what the one before them sees, and the cells that were added since.

#include "llama-kv-cache.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

// The library's own, under its other name, which no header declares.
extern "C" void adriaticum_library_mask(const llama_kv_cache * cache, ggml_tensor * mask, const llama_ubatch * batch, bool causal)
    __asm__("_ZNK14llama_kv_cache23adriaticum_renamed_maskEP11ggml_tensorPK12llama_ubatchb");

extern "C" LLAMA_API void adriaticum_fill_masks(bool own);

namespace {

std::atomic<bool> fill_own{true};

constexpr size_t WORDS = LLAMA_MAX_SEQ / 64;
using Sequences = std::array<uint64_t, WORDS>;
static_assert(sizeof(llama_kv_cells::seq_set_t) == sizeof(Sequences));

Sequences sequences_of(const llama_kv_cells & cells, uint32_t cell) {
    Sequences words;
    std::memcpy(words.data(), &cells.seq_get_all(cell), sizeof words);
    return words;
}

struct Seen {
    llama_pos position;
    uint32_t  cell;
};

// The tokens of one sequence in a batch.
struct Rows {
    uint32_t          first;
    llama_pos         first_position;
    uint32_t          last;     // of those that are written
    std::vector<Seen> later;    // cells that the first does not see
    size_t            next = 0; // of `later`
};

// Ours is for sequences of a batch whose positions rise, in one cache for all of them.
bool applies(const llama_kv_cells_vec & streams, const llama_ubatch & batch) {
    if (streams.size() != 1 || batch.is_pos_2d()) {
        return false;
    }
    std::array<llama_pos, LLAMA_MAX_SEQ> last;
    last.fill(-1);
    for (uint32_t token = 0; token < batch.n_tokens; ++token) {
        llama_pos & before = last[batch.seq_id[token][0]];
        if (batch.pos[token] < before) {
            return false;
        }
        before = batch.pos[token];
    }
    return true;
}

template <typename Number>
void fill(Number * mask, size_t cells_seen, Number visible, Number hidden, const llama_kv_cells & cells, const llama_ubatch & batch) {
    std::array<Rows *, LLAMA_MAX_SEQ> rows_of{};
    Sequences wanted{};
    std::vector<Rows> all;
    all.reserve(std::min<size_t>(batch.n_tokens, LLAMA_MAX_SEQ)); // pointers to them stay valid
    for (uint32_t token = 0; token < batch.n_tokens; ++token) {
        const llama_seq_id sequence = batch.seq_id[token][0];
        if (!rows_of[sequence]) {
            const llama_pos position = batch.pos[token];
            rows_of[sequence] = &all.emplace_back(Rows{token, position, token, {}});
            wanted[sequence / 64] |= uint64_t(1) << (sequence % 64);
            std::fill_n(mask + token * cells_seen, cells_seen, hidden);
        }
    }
    for (uint32_t cell = 0; cell < cells_seen; ++cell) {
        if (cells.is_empty(cell)) {
            continue;
        }
        const Sequences owners = sequences_of(cells, cell);
        for (size_t word = 0; word < WORDS; ++word) {
            for (uint64_t left = owners[word] & wanted[word]; left; left &= left - 1) {
                Rows & rows = *rows_of[word * 64 + __builtin_ctzll(left)];
                const llama_pos position = cells.pos_get(cell);
                if (position <= rows.first_position) {
                    mask[rows.first * cells_seen + cell] = visible;
                } else {
                    rows.later.push_back({position, cell});
                }
            }
        }
    }
    for (Rows & rows : all) {
        std::sort(rows.later.begin(), rows.later.end(), [](const Seen & a, const Seen & b) { return a.position < b.position; });
    }
    for (uint32_t token = 0; token < batch.n_tokens; ++token) {
        Rows & rows = *rows_of[batch.seq_id[token][0]];
        if (token == rows.first) {
            continue;
        }
        Number * row = mask + token * cells_seen;
        std::copy_n(mask + rows.last * cells_seen, cells_seen, row);
        for (; rows.next < rows.later.size() && rows.later[rows.next].position <= batch.pos[token]; ++rows.next) {
            row[rows.later[rows.next].cell] = visible;
        }
        rows.last = token;
    }
}

} // namespace

void adriaticum_fill_masks(bool own) {
    fill_own = own;
}

void llama_kv_cache::set_input_kq_mask(ggml_tensor * mask, const llama_ubatch * batch, bool causal) const {
    const bool is_common = causal && swa_type == LLAMA_SWA_TYPE_NONE && !hparams.use_alibi && mask->ne[3] == 1;
    if (!fill_own || !is_common || !applies(v_cells, *batch)) {
        adriaticum_library_mask(this, mask, batch, causal);
        return;
    }
    GGML_ASSERT(ggml_backend_buffer_is_host(mask->buffer));
    const size_t cells_seen = mask->ne[0];
    if (mask->type == GGML_TYPE_F16) {
        const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0f), hidden = ggml_fp32_to_fp16(-INFINITY);
        fill(static_cast<ggml_fp16_t *>(mask->data), cells_seen, visible, hidden, v_cells[0], *batch);
    } else {
        fill(static_cast<float *>(mask->data), cells_seen, 0.0f, -INFINITY, v_cells[0], *batch);
    }
}

void llama_kv_cache_context::set_input_kq_mask(ggml_tensor * mask, const llama_ubatch * batch, bool causal) const {
    kv->set_input_kq_mask(mask, batch, causal);
}
