// What the bridge's files share: the handles' insides, error handling and JSON helpers.
#pragma once
#include "lcpd_bridge.h"

#include "chat.h"
#include "common.h"
#include "sampling.h"
#include "server-chat.h"
#include "server-common.h"
#include "server-schema.h"
#include "server-task.h"
#include "speculative.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct lcpd_params  { common_params value; };
struct lcpd_chat    { server_chat_params value; };
struct lcpd_request {
    task_params                 params;
    common_chat_msg_delimiters  delimiters;
    const llama_vocab *         vocab;
};
struct lcpd_stream  { task_result_state state; };
struct lcpd_sampler {
    common_sampler_ptr value;
    int32_t            n_vocab;
    bool               has_grammar;
    std::string        error;  // why the last step failed
};

namespace lcpd {

inline char * copy_text(const std::string & s) {
    auto * r = static_cast<char *>(malloc(s.size() + 1));
    if (r) { memcpy(r, s.c_str(), s.size() + 1); }
    return r;
}

// Runs f; a C++ exception becomes *err and the result `failed`.
template <typename R, typename F> R guarded(R failed, char ** err, F && f) noexcept {
    if (err) { *err = nullptr; }
    try {
        return f();
    } catch (const std::exception & e) {
        if (err) { *err = copy_text(e.what()); }
    } catch (...) {
        if (err) { *err = copy_text("unknown C++ exception"); }
    }
    return failed;
}

inline char * to_text(const json & j) { return copy_text(safe_json_to_str(j)); }

inline std::string text_of(const char * p, int32_t n) {
    if (n < 0 || (!p && n > 0)) { throw std::invalid_argument("text: negative length or NULL"); }
    return p ? std::string(p, static_cast<size_t>(n)) : std::string();
}

template <typename T> T & required(T * handle, const char * name) {
    if (!handle) { throw std::invalid_argument(std::string(name) + ": NULL handle"); }
    return *handle;
}

inline void check_token(llama_token t, int32_t n_vocab) {
    if (t < 0 || t >= n_vocab) {
        throw std::out_of_range("token " + std::to_string(t) + " is outside the vocabulary of " + std::to_string(n_vocab));
    }
}

// llama.cpp aborts the process when logits of a row that has none are sampled.
inline void check_row(llama_context * ctx, int32_t row) {
    if (!ctx || !llama_get_logits_ith(ctx, row)) {
        throw std::out_of_range("row " + std::to_string(row) + " of the last batch has no logits");
    }
}

}  // namespace lcpd
