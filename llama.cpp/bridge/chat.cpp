// Chat templates: what llama-server does between a request's body and the prompt text.
#include "internal.h"

using namespace lcpd;

lcpd_chat * lcpd_chat_new(const lcpd_params * params, const llama_model * model, const char * template_text,
                          const char * options_json, char ** err) {
    return guarded<lcpd_chat *>(nullptr, err, [&] {
        const common_params & p = required(params, "params").value;
        if (!model && !template_text) { throw std::invalid_argument("chat: a model or a template is needed"); }
        const json options = json::parse(options_json ? options_json : "{}");
        auto templates = common_chat_templates_init(model, template_text ? template_text : p.chat_template,
                                                    json_value(options, "bos_token", std::string()),
                                                    json_value(options, "eos_token", std::string()));
        // Throws for a template that cannot be rendered at all, as llama-server does at start-up.
        common_chat_format_example(templates.get(), p.use_jinja, p.default_template_kwargs);
        auto r = std::make_unique<lcpd_chat>();
        auto & c = r->value;
        c.use_jinja                = p.use_jinja;
        c.prefill_assistant        = p.prefill_assistant;
        c.reasoning_format         = p.reasoning_format;
        c.chat_template_kwargs     = p.default_template_kwargs;
        c.enable_thinking          = p.enable_reasoning != 0 && p.use_jinja && common_chat_templates_support_enable_thinking(templates.get());
        c.reasoning_budget         = p.sampling.reasoning_budget_tokens;
        c.reasoning_budget_message = p.sampling.reasoning_budget_message;
        c.tmpls                    = std::move(templates);
        return r.release();
    });
}
void lcpd_chat_free(lcpd_chat * c) { delete c; }

char * lcpd_chat_info(const lcpd_chat * chat, char ** err) {
    return guarded<char *>(nullptr, err, [&] {
        const auto & c = required(chat, "chat").value;
        json caps = json::object();
        for (const auto & kv : common_chat_templates_get_caps(c.tmpls.get())) { caps[kv.first] = kv.second; }
        return to_text(json{
            {"caps", caps},
            {"supports_thinking", c.enable_thinking},
            {"explicit", common_chat_templates_was_explicit(c.tmpls.get())},
            {"source", common_chat_templates_source(c.tmpls.get())},
        });
    });
}

char * lcpd_chat_convert(int32_t dialect, const char * body_json, char ** err) {
    return guarded<char *>(nullptr, err, [&] {
        const json body = json::parse(body_json ? body_json : "");
        switch (dialect) {
            case LCPD_DIALECT_CHAT:      return to_text(body);
            case LCPD_DIALECT_RESPONSES: return to_text(server_chat_convert_responses_to_chatcmpl(body));
            case LCPD_DIALECT_ANTHROPIC: return to_text(server_chat_convert_anthropic_to_oai(body));
            default: throw std::invalid_argument("dialect " + std::to_string(dialect) + " is unknown");
        }
    });
}

char * lcpd_chat_apply(const lcpd_chat * chat, const char * body_json, char ** err) {
    return guarded<char *>(nullptr, err, [&] {
        json body = json::parse(body_json ? body_json : "");
        if (!body.is_object()) { throw std::invalid_argument("the body must be a JSON object"); }
        std::vector<raw_buffer> files;
        json fields = oaicompat_chat_params_parse(body, required(chat, "chat").value, files);
        fields.erase("messages");
        fields.erase("tools");
        return to_text(fields);
    });
}
