// liblcpd_bridge: a C ABI over the parts of llama.cpp that exist only in C++ (the `common` library and the
// server's request handling): chat templates, request schema, output parsing, sampling, speculation.
//
// Rules of this interface
//   * Every string is UTF-8.  A `char *` result is malloc'd: release it with lcpd_free.
//   * A call that can fail takes `char ** err` last.  On failure it returns NULL or a negative number and stores
//     a malloc'd text in *err (release with lcpd_free); on success *err is NULL.  Nothing throws across.
//   * Handles are opaque.  A handle must outlive what was made from it only where that is said.
//   * lcpd_sampler and lcpd_spec belong to one thread.  The other handles may be used from several threads as
//     long as one call at a time works on the same handle.
#pragma once
#include "llama.h"
#define LCPD_API __attribute__((visibility("default")))
#define LCPD_ABI 2
#ifdef __cplusplus
extern "C" {
#endif

typedef struct lcpd_params  lcpd_params;   // server-wide defaults (common_params)
typedef struct lcpd_chat    lcpd_chat;     // a chat template and its options
typedef struct lcpd_request lcpd_request;  // the evaluated fields of one request (task_params)
typedef struct lcpd_stream  lcpd_stream;   // the incremental parser of one reply
typedef struct lcpd_sampler lcpd_sampler;  // the sampler chain of one sequence
typedef struct lcpd_spec    lcpd_spec;     // speculative drafting over one target context

// Request dialects that lcpd_chat_convert turns into chat completions.
enum { LCPD_DIALECT_CHAT = 0, LCPD_DIALECT_RESPONSES = 1, LCPD_DIALECT_ANTHROPIC = 2 };

// ---- library -----------------------------------------------------------------------------------------
LCPD_API int32_t      lcpd_abi(void);    // LCPD_ABI of the compiled library
LCPD_API const char * lcpd_build(void);  // llama.cpp's own build text; static, not to be freed
LCPD_API void         lcpd_free(void * p);
LCPD_API void         lcpd_log_verbosity(int32_t level);  // of llama.cpp's common library
// 0: every ggml device computed a small matrix product right; -1: *err says which did not.
LCPD_API int32_t      lcpd_selftest_matmul(char ** err);

// ---- memory ------------------------------------------------------------------------------------------
// Pin [p, p + size) for copies to and from a CUDA device, both ways; p must be the start of a page.  1: pinned until
// lcpd_unpin_host; 0: not available, there is no CUDA device or ggml was built without CUDA; -1: it failed.
LCPD_API int32_t      lcpd_pin_host(void * p, uint64_t size, char ** err);
LCPD_API int32_t      lcpd_unpin_host(void * p, char ** err);

// ---- params ------------------------------------------------------------------------------------------
// argv_json: a JSON array of llama-server style flags.  Only flags of an allow-list are taken, because others
// exit the process (--help), open files or reach the network.
LCPD_API lcpd_params * lcpd_params_new(const char * argv_json, char ** err);
LCPD_API void          lcpd_params_free(lcpd_params *);

// ---- chat templates ----------------------------------------------------------------------------------
// model: may be NULL when template_text is given.  options_json: {"bos_token","eos_token"} for that case.
LCPD_API lcpd_chat * lcpd_chat_new(const lcpd_params *, const struct llama_model * model, const char * template_text,
                                   const char * options_json, char ** err);
LCPD_API void        lcpd_chat_free(lcpd_chat *);
// {"caps": {...}, "supports_thinking": bool, "explicit": bool, "source": "the template's text"}
LCPD_API char *      lcpd_chat_info(const lcpd_chat *, char ** err);
// A body of another dialect as a chat-completions body.
LCPD_API char *      lcpd_chat_convert(int32_t dialect, const char * body_json, char ** err);
// A chat-completions body rendered: the request's fields for lcpd_request_new, plus "prompt", without "messages"
// and "tools" (which can be large and are not needed again).
LCPD_API char *      lcpd_chat_apply(const lcpd_chat *, const char * body_json, char ** err);

// ---- request -----------------------------------------------------------------------------------------
// fields_json: what lcpd_chat_apply returned (without "prompt" if you like), or a completion body.
// The model supplies the vocabulary; it must outlive the request.
LCPD_API lcpd_request * lcpd_request_new(const lcpd_params *, const struct llama_model * model, const char * fields_json, char ** err);
LCPD_API void           lcpd_request_free(lcpd_request *);
// {"stop": [...], "n_predict": int, "ignore_eos": bool, "preserved_tokens": [ids], "n_probs": int,
//  "post_sampling_probs": bool, "settings": {...}}
LCPD_API char *         lcpd_request_info(const lcpd_request *, char ** err);
// Applies the request's grammar once to the whole vocabulary.  A grammar can compile in no time and take minutes for
// this; a caller with a time limit finds that out here.  0: done, or there is no grammar.
LCPD_API int32_t        lcpd_request_probe_grammar(const lcpd_request *, char ** err);
// Message boundaries of a tokenised prompt: writes {role, begin, length} triples to out3 (capacity `cap` triples) and
// returns how many there are, which may be more than cap.  Roles: 1 system, 2 assistant, 3 user, 4 tool, else unknown.
LCPD_API int32_t        lcpd_request_spans(const lcpd_request *, const llama_token * tokens, int32_t n, int32_t * out3, int32_t cap, char ** err);
// A whole (or, with partial = 1, an unfinished) reply as an OpenAI message.
LCPD_API char *         lcpd_request_parse(const lcpd_request *, const char * text, int32_t length, int32_t partial, char ** err);

// ---- streaming parser --------------------------------------------------------------------------------
LCPD_API lcpd_stream * lcpd_stream_new(const lcpd_request *, char ** err);
LCPD_API void          lcpd_stream_free(lcpd_stream *);
// Adds text and returns {"deltas": [OpenAI chat deltas], "message": {...} only when final}.
LCPD_API char *        lcpd_stream_push(lcpd_stream *, const char * text, int32_t length, int32_t final_, char ** err);

// ---- sampler -----------------------------------------------------------------------------------------
LCPD_API lcpd_sampler * lcpd_sampler_new(const lcpd_request *, const struct llama_model *, char ** err);
LCPD_API lcpd_sampler * lcpd_sampler_clone(lcpd_sampler *, char ** err);
LCPD_API void           lcpd_sampler_free(lcpd_sampler *);
LCPD_API void           lcpd_sampler_reset(lcpd_sampler *);
LCPD_API char *         lcpd_sampler_describe(const lcpd_sampler *, char ** err);
// Tells the sampler about the prompt (for penalties); grammar is not advanced.
LCPD_API int32_t        lcpd_sampler_accept_prompt(lcpd_sampler *, const llama_token *, int32_t n, char ** err);
// Tells the sampler about one generated token (grammar and reasoning budget advance).
LCPD_API int32_t        lcpd_sampler_accept(lcpd_sampler *, llama_token, char ** err);
// Samples and accepts one token for each of n samplers; rows[i] is the batch index whose logits sampler i reads.
// A sampler that fails (a grammar with no token left, for instance) yields -1 and leaves the others alone.
// Samplers with a grammar run at the same time, as far as there are cores, so that they delay the others as long as the
// slowest one does alone.
// No sampler may be given twice.
LCPD_API int32_t        lcpd_sampler_step_many(int32_t n, lcpd_sampler ** samplers, struct llama_context *, const int32_t * rows,
                                               llama_token * out, char ** err);
// Why this sampler's last step yielded -1; owned by the sampler.
LCPD_API const char *   lcpd_sampler_error(const lcpd_sampler *);
// Samples along n_draft drafted tokens until one differs; writes 1..n_draft+1 tokens to out and returns how many.
LCPD_API int32_t        lcpd_sampler_verify(lcpd_sampler *, struct llama_context *, const int32_t * rows, const llama_token * draft,
                                            int32_t n_draft, llama_token * out, char ** err);
// The n most probable tokens of a batch row: pre-sampling softmax (post = 0) or what the chain left (post = 1).
// Returns how many were written to ids/probs; *p_token is the probability of `token`.
LCPD_API int32_t        lcpd_sampler_probs(lcpd_sampler *, struct llama_context *, int32_t row, llama_token token, int32_t post, int32_t n,
                                           llama_token * ids, float * probs, float * p_token, char ** err);
// Forces the end of the reasoning block.  1: it will end; 0: not in a reasoning block.
LCPD_API int32_t        lcpd_sampler_end_reasoning(lcpd_sampler *);

// ---- speculation -------------------------------------------------------------------------------------
// Drafting as the params' --spec-type asks (n-gram kinds, or draft-mtp with a second context made here).
LCPD_API lcpd_spec *            lcpd_spec_new(const lcpd_params *, struct llama_model * target, struct llama_context * ctx_target, uint32_t n_seq, char ** err);
LCPD_API void                   lcpd_spec_free(lcpd_spec *);
LCPD_API struct llama_context * lcpd_spec_context(lcpd_spec *);  // the draft context, or NULL
LCPD_API int32_t                lcpd_spec_n_max(const lcpd_spec *);
// A sequence starts anew with these tokens in its context.
LCPD_API int32_t lcpd_spec_begin(lcpd_spec *, llama_seq_id, const llama_token *, int32_t n, char ** err);
// The batch that the target has just decoded.
LCPD_API int32_t lcpd_spec_process(lcpd_spec *, int32_t n, const llama_token *, const llama_pos *, const llama_seq_id *, const int8_t * output, char ** err);
// Asks for a draft after `last`; `added` are the tokens accepted since the last begin or want of this sequence.
LCPD_API int32_t lcpd_spec_want(lcpd_spec *, llama_seq_id, int32_t n_max, llama_pos pos, llama_token last, const llama_token * added, int32_t n_added, char ** err);
LCPD_API int32_t lcpd_spec_draft(lcpd_spec *, char ** err);  // one pass for all sequences that want one
LCPD_API int32_t lcpd_spec_result(lcpd_spec *, llama_seq_id, llama_token * out, int32_t cap, char ** err);
LCPD_API int32_t lcpd_spec_accept(lcpd_spec *, llama_seq_id, int32_t n_accepted, char ** err);

#ifdef __cplusplus
}
#endif
