// A request's evaluated fields, and the parser of what the model replies to it.
#include "internal.h"

#include "llama-cpp.h"

#include <cmath>

using namespace lcpd;

lcpd_request * lcpd_request_new(const lcpd_params * params, const llama_model * model, const char * fields_json, char ** err) {
    return guarded<lcpd_request *>(nullptr, err, [&] {
        const llama_vocab * vocab = llama_model_get_vocab(&required(model, "model"));
        const json fields = json::parse(fields_json ? fields_json : "");
        if (!fields.is_object()) { throw std::invalid_argument("the request's fields must be a JSON object"); }
        std::vector<llama_logit_bias> end_of_generation;  // for ignore_eos
        for (llama_token t = 0, n = llama_vocab_n_tokens(vocab); t < n; t++) {
            if (llama_vocab_is_eog(vocab, t)) { end_of_generation.push_back({ t, -INFINITY }); }
        }
        auto r = std::make_unique<lcpd_request>();
        r->vocab      = vocab;
        r->params     = server_schema::eval_llama_cmpl_schema(vocab, required(params, "params").value, end_of_generation, fields);
        r->delimiters = common_chat_msg_delimiters_parse(json_value(fields, "message_delimiters", json::array()));
        r->delimiters.tokenize(vocab);
        return r.release();
    });
}
void lcpd_request_free(lcpd_request * r) { delete r; }

char * lcpd_request_info(const lcpd_request * request, char ** err) {
    return guarded<char *>(nullptr, err, [&] {
        const auto & p = required(request, "request").params;
        return to_text(json{
            {"stop", p.antiprompt},
            {"n_predict", p.n_predict},
            {"ignore_eos", p.sampling.ignore_eos},
            {"preserved_tokens", p.sampling.preserved_tokens},
            {"n_probs", p.sampling.n_probs},
            {"post_sampling_probs", p.post_sampling_probs},
            {"settings", p.to_json()},
        });
    });
}

int32_t lcpd_request_probe_grammar(const lcpd_request * request, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        const auto & r = required(request, "request");
        const std::string grammar = common_grammar_value(r.params.sampling.grammar);
        if (grammar.empty()) { return 0; }
        llama_sampler_ptr sampler(llama_sampler_init_grammar(r.vocab, grammar.c_str(), "root"));
        if (!sampler) { throw std::invalid_argument("the grammar does not compile"); }
        std::vector<llama_token_data> flat;
        for (llama_token t = 0, n = llama_vocab_n_tokens(r.vocab); t < n; t++) { flat.push_back({ t, 0.0f, 0.0f }); }
        llama_token_data_array candidates = { flat.data(), flat.size(), -1, false };
        llama_sampler_apply(sampler.get(), &candidates);
        return 0;
    });
}

int32_t lcpd_request_spans(const lcpd_request * request, const llama_token * tokens, int32_t n, int32_t * out3, int32_t cap, char ** err) {
    return guarded<int32_t>(-1, err, [&] {
        if (n < 0 || cap < 0 || (n > 0 && !tokens) || (cap > 0 && !out3)) { throw std::invalid_argument("spans: bad sizes"); }
        const auto split = required(request, "request").delimiters.split(llama_tokens(tokens, tokens + n));
        int32_t k = 0;
        for (const auto & s : split.spans) {
            if (k < cap) {
                out3[3*k]     = static_cast<int32_t>(s.role);
                out3[3*k + 1] = static_cast<int32_t>(s.pos);
                out3[3*k + 2] = static_cast<int32_t>(s.len);
            }
            k++;
        }
        return k;
    });
}

char * lcpd_request_parse(const lcpd_request * request, const char * text, int32_t length, int32_t partial, char ** err) {
    return guarded<char *>(nullptr, err, [&] {
        const auto & p = required(request, "request").params.chat_parser_params;
        return to_text(common_chat_parse(text_of(text, length), partial != 0, p).to_json_oaicompat());
    });
}

lcpd_stream * lcpd_stream_new(const lcpd_request * request, char ** err) {
    return guarded<lcpd_stream *>(nullptr, err, [&] {
        return new lcpd_stream{ task_result_state(required(request, "request").params.chat_parser_params) };
    });
}
void lcpd_stream_free(lcpd_stream * s) { delete s; }

char * lcpd_stream_push(lcpd_stream * stream, const char * text, int32_t length, int32_t final_, char ** err) {
    return guarded<char *>(nullptr, err, [&] {
        auto & state = required(stream, "stream").state;
        std::vector<common_chat_msg_diff> diffs;
        state.update_chat_msg(text_of(text, length), !final_, diffs);
        json result{ {"deltas", json::array()} };
        for (const auto & d : diffs) { result["deltas"].push_back(server_chat_msg_diff_to_json_oaicompat(d)); }
        if (final_) { result["message"] = state.chat_msg.to_json_oaicompat(); }
        return to_text(result);
    });
}
