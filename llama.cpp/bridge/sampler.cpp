// llama.cpp's sampler chain (common_sampler): one per running sequence.
#include "internal.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <thread>

using namespace lcpd;

lcpd_sampler * lcpd_sampler_new(const lcpd_request * request, const llama_model * model, char ** err) {
    return guarded<lcpd_sampler *>(nullptr, err, [&] {
        common_params_sampling settings = required(request, "request").params.sampling;  // init may change them
        common_sampler_ptr s(common_sampler_init(&required(model, "model"), settings));
        if (!s) { throw std::invalid_argument("the sampler could not be made: the grammar does not compile"); }
        return new lcpd_sampler{ std::move(s), llama_vocab_n_tokens(llama_model_get_vocab(model)), !common_grammar_value(settings.grammar).empty(), {} };
    });
}
lcpd_sampler * lcpd_sampler_clone(lcpd_sampler * s, char ** err) {
    return guarded<lcpd_sampler *>(nullptr, err, [&] {
        auto & from = required(s, "sampler");
        return new lcpd_sampler{ common_sampler_ptr(common_sampler_clone(from.value.get())), from.n_vocab, from.has_grammar, {} };
    });
}
void lcpd_sampler_free(lcpd_sampler * s)  { delete s; }
void lcpd_sampler_reset(lcpd_sampler * s) { if (s) { common_sampler_reset(s->value.get()); } }

char * lcpd_sampler_describe(const lcpd_sampler * s, char ** err) {
    return guarded<char *>(nullptr, err, [&] { return copy_text(common_sampler_print(required(s, "sampler").value.get())); });
}

int32_t lcpd_sampler_accept_prompt(lcpd_sampler * sampler, const llama_token * tokens, int32_t n, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(sampler, "sampler");
        for (int32_t i = 0; i < n; i++) { check_token(tokens[i], s.n_vocab); }
        for (int32_t i = 0; i < n; i++) { common_sampler_accept(s.value.get(), tokens[i], false); }
        return 0;
    });
}
// The chain ends with the sampler that draws, one number for each token; a token that was sampled elsewhere is to
// leave its generator where sampling it would have.
static void draw(llama_sampler * chain) {
    const int n = chain ? llama_sampler_chain_n(chain) : 0;
    llama_sampler * last = n > 0 ? llama_sampler_chain_get(chain, n - 1) : nullptr;
    if (!last || strcmp(llama_sampler_name(last), "dist") != 0) { return; }
    llama_token_data only = { 0, 0.0f, 0.0f };
    llama_token_data_array candidates = { &only, 1, -1, true };
    llama_sampler_apply(last, &candidates);
}
int32_t lcpd_sampler_accept(lcpd_sampler * sampler, llama_token token, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(sampler, "sampler");
        check_token(token, s.n_vocab);
        common_sampler_accept(s.value.get(), token, true);
        draw(common_sampler_get(s.value.get()));
        return 0;
    });
}

static llama_token step(lcpd_sampler & s, llama_context * ctx, int32_t row) noexcept {
    try {
        const llama_token token = common_sampler_sample(s.value.get(), ctx, row);
        common_sampler_accept(s.value.get(), token, true);
        return token;
    } catch (const std::exception & e) {
        s.error = e.what();
    } catch (...) {
        s.error = "unknown C++ exception";
    }
    return LLAMA_TOKEN_NULL;
}

int32_t lcpd_sampler_step_many(int32_t n, lcpd_sampler ** samplers, llama_context * ctx, const int32_t * rows, llama_token * out, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        for (int32_t i = 0; i < n; i++) {
            required(samplers[i], "sampler");
            check_row(ctx, rows[i]);
        }
        const auto run = [&](int32_t i) { out[i] = step(*samplers[i], ctx, rows[i]); };
        // A token that violates a grammar costs tens of milliseconds, so grammars are worked on side by side.
        // Sampling from one context at once is sound here: check_row has synchronized it and put its rows in order,
        // after which llama.cpp's accessors only read (or store the zeros that are there already), and all else that
        // common_sampler_sample writes belongs to the sampler.
        std::vector<int32_t> with_grammar;
        for (int32_t i = 0; i < n; i++) {
            if (samplers[i]->has_grammar) { with_grammar.push_back(i); }
        }
        std::atomic<size_t> next{0};
        const auto run_grammars = [&] {
            for (size_t k; (k = next++) < with_grammar.size();) { run(with_grammar[k]); }
        };
        const size_t n_threads = std::min<size_t>(with_grammar.size(), std::max(1u, std::thread::hardware_concurrency()));
        std::vector<std::future<void>> helpers;
        helpers.reserve(n_threads);
        try {
            while (helpers.size() + 1 < n_threads) { helpers.push_back(std::async(std::launch::async, run_grammars)); }
        } catch (const std::system_error &) {
            // no more threads: those that there are do the work
        }
        for (int32_t i = 0; i < n; i++) {
            if (!samplers[i]->has_grammar) { run(i); }
        }
        run_grammars();
        for (auto & helper : helpers) { helper.wait(); }
        return n;
    });
}

const char * lcpd_sampler_error(const lcpd_sampler * s) { return s ? s->error.c_str() : ""; }

int32_t lcpd_sampler_verify(lcpd_sampler * sampler, llama_context * ctx, const int32_t * rows, const llama_token * draft, int32_t n_draft,
                            llama_token * out, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(sampler, "sampler");
        if (n_draft < 0) { throw std::invalid_argument("verify: negative draft length"); }
        for (int32_t i = 0; i < n_draft; i++) { check_token(draft[i], s.n_vocab); }
        for (int32_t i = 0; i <= n_draft; i++) { check_row(ctx, rows[i]); }
        const auto accepted = common_sampler_sample_and_accept_n(s.value.get(), ctx, std::vector<int>(rows, rows + n_draft + 1),
                                                                 llama_tokens(draft, draft + n_draft));
        std::copy(accepted.begin(), accepted.end(), out);
        return static_cast<int32_t>(accepted.size());
    });
}

int32_t lcpd_sampler_probs(lcpd_sampler * sampler, llama_context * ctx, int32_t row, llama_token token, int32_t post, int32_t n,
                           llama_token * ids, float * probs, float * p_token, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(sampler, "sampler");
        check_row(ctx, row);
        if (n < 0) { throw std::invalid_argument("probs: negative count"); }
        std::vector<llama_token_data> raw;
        const llama_token_data * data;
        size_t size;
        if (post) {
            const auto * candidates = common_sampler_get_candidates(s.value.get(), true);
            data = candidates->data;
            size = candidates->size;
        } else {
            raw  = get_token_probabilities(ctx, row, n);
            data = raw.data();
            size = raw.size();
        }
        *p_token = 0.0f;
        for (size_t i = 0; i < size; i++) {
            if (data[i].id == token) { *p_token = data[i].p; break; }
        }
        int32_t k = 0;
        for (size_t i = 0; i < size && k < n && !(post && data[i].p == 0.0f); i++, k++) {
            ids[k]   = data[i].id;
            probs[k] = data[i].p;
        }
        return k;
    });
}

int32_t lcpd_sampler_end_reasoning(lcpd_sampler * s) { return s && common_sampler_reasoning_budget_force(s->value.get()) ? 1 : 0; }
