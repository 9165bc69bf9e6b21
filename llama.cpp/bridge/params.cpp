// Library identity and server-wide defaults.
#include "internal.h"

#include "arg.h"
#include "build-info.h"
#include "log.h"

#include <set>

using namespace lcpd;

int32_t      lcpd_abi(void)                        { return LCPD_ABI; }
const char * lcpd_build(void)                      { return llama_build_info(); }
void         lcpd_free(void * p)                   { free(p); }
void         lcpd_log_verbosity(int32_t level)     { common_log_set_verbosity_thold(level); }

static const std::set<std::string> allowed_flags = {
    "--batch-size", "--cache-type-k", "--cache-type-v", "--chat-template-kwargs", "--ctx-size", "--flash-attn", "--jinja",
    "--no-prefill-assistant", "--parallel", "--reasoning-budget", "--reasoning-format", "--spec-draft-n-max",
    "--spec-draft-n-min", "--spec-draft-p-min", "--spec-ngram-simple-size-m", "--spec-ngram-simple-size-n", "--spec-type", "--threads", "--threads-batch", "--ubatch-size",
    // sampling defaults
    "--dynatemp-range", "--dynatemp-exp", "--frequency-penalty", "--min-p", "--presence-penalty", "--repeat-last-n",
    "--repeat-penalty", "--samplers", "--seed", "--temp", "--top-k", "--top-p", "--typical",
};

lcpd_params * lcpd_params_new(const char * argv_json, char ** err) {
    return guarded<lcpd_params *>(nullptr, err, [&] {
        auto args = json::parse(argv_json ? argv_json : "").get<std::vector<std::string>>();
        for (const auto & a : args) {
            if (a.rfind("--", 0) == 0 && !allowed_flags.count(a)) {
                throw std::invalid_argument("flag " + a + " is not accepted by the bridge");
            }
        }
        args.insert(args.begin(), "lcpd");
        std::vector<char *> argv;
        for (auto & a : args) { argv.push_back(a.data()); }
        argv.push_back(nullptr);
        auto r = std::make_unique<lcpd_params>();
        if (!common_params_parse(static_cast<int>(args.size()), argv.data(), r->value, LLAMA_EXAMPLE_SERVER)) {
            throw std::invalid_argument("llama.cpp refused the arguments " + std::string(argv_json));
        }
        return r.release();
    });
}
void lcpd_params_free(lcpd_params * p) { delete p; }
