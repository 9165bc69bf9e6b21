// Speculative drafting (n-gram kinds and MTP) as llama.cpp's common library does it.
#include "internal.h"

#include <algorithm>

using namespace lcpd;

struct lcpd_spec {
    // Order matters: `drafter` uses the draft model and context that `draft_parts` owns, so it goes first.
    common_speculative_init_result_ptr draft_parts;
    common_params_speculative          settings;
    common_speculative_ptr             drafter;
    llama_context *                    draft_ctx = nullptr;
    common_batch                       batch;
    int32_t                            n_vocab = 0;
    std::vector<llama_tokens>          context;  // per sequence: its tokens so far
    std::vector<llama_tokens>          drafts;   // per sequence: the last draft

    void check(llama_seq_id seq) const {
        if (seq < 0 || static_cast<size_t>(seq) >= context.size()) { throw std::out_of_range("sequence " + std::to_string(seq) + " is unknown"); }
    }
    void check(const llama_token * tokens, int32_t n) const {
        if (n < 0 || (n > 0 && !tokens)) { throw std::invalid_argument("speculation: bad token array"); }
        for (int32_t i = 0; i < n; i++) { check_token(tokens[i], n_vocab); }
    }
};

lcpd_spec * lcpd_spec_new(const lcpd_params * params, llama_model * target, llama_context * ctx_target, uint32_t n_seq, char ** err) {
    return guarded<lcpd_spec *>(nullptr, err, [&] {
        required(target, "target");
        required(ctx_target, "ctx_target");
        const common_params & p = required(params, "params").value;
        auto r = std::make_unique<lcpd_spec>();
        r->settings = p.speculative;
        r->n_vocab  = llama_vocab_n_tokens(llama_model_get_vocab(target));
        const auto & types = r->settings.types;
        const bool mtp = std::find(types.begin(), types.end(), COMMON_SPECULATIVE_TYPE_DRAFT_MTP) != types.end();
        if (mtp || r->settings.has_dft()) {
            common_params draft_params = common_base_params_to_speculative(p);
            r->draft_parts = common_speculative_init_from_params(draft_params, target, ctx_target);
            r->draft_ctx   = r->draft_parts->context();
            if (!r->draft_ctx) { throw std::runtime_error("the draft context could not be made"); }
            r->settings.draft.ctx_tgt = ctx_target;
            r->settings.draft.ctx_dft = r->draft_ctx;
        }
        r->drafter.reset(common_speculative_init(r->settings, n_seq));
        if (!r->drafter) { throw std::invalid_argument("the params enable no kind of speculation (--spec-type)"); }
        r->batch = common_batch(ctx_target);
        r->context.resize(n_seq);
        r->drafts.resize(n_seq);
        return r.release();
    });
}
void            lcpd_spec_free(lcpd_spec * s)         { delete s; }
llama_context * lcpd_spec_context(lcpd_spec * s)      { return s ? s->draft_ctx : nullptr; }
int32_t         lcpd_spec_n_max(const lcpd_spec * s)  { return s ? common_speculative_n_max(s->drafter.get()) : 0; }

int32_t lcpd_spec_begin(lcpd_spec * spec, llama_seq_id seq, const llama_token * tokens, int32_t n, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(spec, "spec");
        s.check(seq);
        s.check(tokens, n);
        s.context[seq].assign(tokens, tokens + n);
        common_speculative_begin(s.drafter.get(), seq, s.context[seq]);
        return 0;
    });
}

int32_t lcpd_spec_process(lcpd_spec * spec, int32_t n, const llama_token * tokens, const llama_pos * pos, const llama_seq_id * seqs,
                          const int8_t * output, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(spec, "spec");
        s.check(tokens, n);
        s.batch.clear();
        for (int32_t i = 0; i < n; i++) {
            s.check(seqs[i]);
            s.batch.add(tokens[i], pos[i], seqs[i], output && output[i]);
        }
        if (!common_speculative_process(s.drafter.get(), s.batch)) { throw std::runtime_error("the drafter refused the batch"); }
        return 0;
    });
}

int32_t lcpd_spec_want(lcpd_spec * spec, llama_seq_id seq, int32_t n_max, llama_pos pos, llama_token last, const llama_token * added,
                       int32_t n_added, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(spec, "spec");
        s.check(seq);
        s.check(added, n_added);
        check_token(last, s.n_vocab);
        s.context[seq].insert(s.context[seq].end(), added, added + n_added);
        s.drafts[seq].clear();
        common_speculative_get_draft_params(s.drafter.get(), seq) = { true, n_max, pos, last, &s.context[seq], &s.drafts[seq] };
        return 0;
    });
}

int32_t lcpd_spec_draft(lcpd_spec * spec, char ** err) {
    return guarded<int32_t>(-1, err, [&] { common_speculative_draft(required(spec, "spec").drafter.get()); return 0; });
}

int32_t lcpd_spec_result(lcpd_spec * spec, llama_seq_id seq, llama_token * out, int32_t cap, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(spec, "spec");
        s.check(seq);
        const auto & d = s.drafts[seq];
        std::copy_n(d.begin(), std::min<size_t>(std::max(cap, 0), d.size()), out);
        return static_cast<int32_t>(d.size());
    });
}

int32_t lcpd_spec_accept(lcpd_spec * spec, llama_seq_id seq, int32_t n_accepted, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        auto & s = required(spec, "spec");
        s.check(seq);
        if (n_accepted < 0 || n_accepted > static_cast<int32_t>(s.drafts[seq].size())) { throw std::out_of_range("accepted more than was drafted"); }
        common_speculative_accept(s.drafter.get(), seq, static_cast<uint16_t>(n_accepted));
        return 0;
    });
}
