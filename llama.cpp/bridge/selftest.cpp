// Self-test of a finished build: is what every ggml device computes right?  Called by `python -m lcpd.build.selftest`
// in a child process, because the CPU kernels chosen by -march=native can die by signal on some virtual machines.
#include "lcpd_bridge.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Sizes at which the tiled and repacked CPU kernels take part: they want whole super-blocks of 256 and many rows.
constexpr int64_t K = 512;
constexpr int64_t ROWS = 64;
constexpr int64_t COLUMNS = 33;  // odd on purpose: full tiles and a remainder

// llama.cpp's own bound for matrix products against a reference (normalised mean squared error).
constexpr double MAX_NMSE = 5e-4;

const ggml_type TYPES[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K };

// Reproducible values in [-1, 1).
std::vector<float> values(size_t n, uint32_t seed) {
    std::vector<float> out(n);
    uint32_t state = seed;
    for (float & x : out) {
        state = state * 1664525u + 1013904223u;
        x = float(int32_t(state)) / 2147483648.0f;
    }
    return out;
}

struct Weights {
    std::vector<uint8_t> data;     // as stored
    std::vector<float>   decoded;  // what the stored bytes mean
};

Weights make_weights(ggml_type type) {
    const std::vector<float> source = values(size_t(K * ROWS), 1);
    Weights w;
    w.data.resize(ggml_row_size(type, K) * ROWS);
    w.decoded.resize(source.size());
    if (type == GGML_TYPE_F32) {
        std::memcpy(w.data.data(), source.data(), w.data.size());
        w.decoded = source;
    } else {
        ggml_quantize_chunk(type, source.data(), w.data.data(), 0, ROWS, K, nullptr);
        ggml_get_type_traits(type)->to_float(w.data.data(), w.decoded.data(), K * ROWS);
    }
    return w;
}

double nmse(const std::vector<float> & got, const std::vector<float> & weights, const std::vector<float> & input) {
    double error = 0.0;
    double norm  = 0.0;
    for (int64_t c = 0; c < COLUMNS; ++c) {
        for (int64_t r = 0; r < ROWS; ++r) {
            double want = 0.0;
            for (int64_t k = 0; k < K; ++k) {
                want += double(weights[size_t(r * K + k)]) * double(input[size_t(c * K + k)]);
            }
            const double difference = double(got[size_t(c * ROWS + r)]) - want;
            error += difference * difference;
            norm += want * want;
        }
    }
    return error / norm;
}

// Puts `tensor` alone into a new buffer of this type.
ggml_backend_buffer_ptr place(ggml_tensor * tensor, ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, tensor)));
    if (!buffer || ggml_backend_tensor_alloc(buffer.get(), tensor, ggml_backend_buffer_get_base(buffer.get())) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error(std::string("cannot allocate in ") + ggml_backend_buft_name(type));
    }
    return buffer;
}

// One product with the weights in `weights_type`; a pair of type and buffer that the device does not support is no error.
void check_product(ggml_backend_dev_t device, ggml_backend_t backend, ggml_backend_buffer_type_t weights_type, ggml_type type) {
    const ggml_init_params params = { ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, /*no_alloc*/ true };
    ggml_context_ptr context(ggml_init(params));
    ggml_tensor * a   = ggml_new_tensor_2d(context.get(), type, K, ROWS);
    ggml_tensor * b   = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, K, COLUMNS);
    ggml_tensor * out = ggml_mul_mat(context.get(), a, b);

    const ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(device);
    const ggml_backend_buffer_ptr buffer_a = place(a, weights_type);
    if (!ggml_backend_dev_supports_op(device, out)) {
        return;
    }
    const ggml_backend_buffer_ptr buffer_b   = place(b, plain);
    const ggml_backend_buffer_ptr buffer_out = place(out, plain);

    const Weights w                = make_weights(type);
    const std::vector<float> input = values(size_t(K * COLUMNS), 2);
    ggml_backend_tensor_set(a, w.data.data(), 0, w.data.size());
    ggml_backend_tensor_set(b, input.data(), 0, input.size() * sizeof(float));

    ggml_cgraph * graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, out);
    const std::string what = std::string(ggml_backend_dev_name(device)) + ", " + ggml_type_name(type) + " weights in " +
                             ggml_backend_buft_name(weights_type);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("the matrix product failed on " + what);
    }
    std::vector<float> got(size_t(ROWS * COLUMNS));
    ggml_backend_tensor_get(out, got.data(), 0, got.size() * sizeof(float));
    const double error = nmse(got, w.decoded, input);
    if (!(error <= MAX_NMSE)) {  // also true for NaN
        throw std::runtime_error("the matrix product is wrong on " + what + " (normalised error " + std::to_string(error) + ")");
    }
}

// The device's own buffer type, then the ones that repack weights (AMX among them), which llama.cpp prefers when it loads.
std::vector<ggml_backend_buffer_type_t> weight_buffer_types(ggml_backend_dev_t device) {
    std::vector<ggml_backend_buffer_type_t> types = { ggml_backend_dev_buffer_type(device) };
    auto * extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    if (extra) {
        for (ggml_backend_buffer_type_t * type = extra(device); type && *type; ++type) {
            types.push_back(*type);
        }
    }
    return types;
}

void check_device(ggml_backend_dev_t device) {
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    if (!backend) {
        throw std::runtime_error(std::string("cannot start the device ") + ggml_backend_dev_name(device));
    }
    for (ggml_backend_buffer_type_t buffer_type : weight_buffer_types(device)) {
        for (ggml_type type : TYPES) {
            check_product(device, backend.get(), buffer_type, type);
        }
    }
}

}  // namespace

extern "C" {

int32_t lcpd_selftest_matmul(char ** err) {
    try {
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            check_device(ggml_backend_dev_get(i));
        }
        return 0;
    } catch (const std::exception & e) {
        if (err) {
            *err = strdup(e.what());
        }
    } catch (...) {
        if (err) {
            *err = strdup("an unknown C++ exception");
        }
    }
    return -1;
}

// sizeof of the struct that the Python bindings declare under this name, or -1: a difference means that bindings and
// library do not belong together.  Declared here alone, its one caller is the self-test.
LCPD_API int32_t lcpd_selftest_sizeof(const char * name) {
    const struct { const char * name; size_t size; } table[] = {
        { "llama_model_params", sizeof(llama_model_params) },
        { "llama_context_params", sizeof(llama_context_params) },
        { "llama_batch", sizeof(llama_batch) },
        { "llama_token_data", sizeof(llama_token_data) },
        { "llama_token_data_array", sizeof(llama_token_data_array) },
        { "llama_chat_message", sizeof(llama_chat_message) },
        { "llama_sampler_chain_params", sizeof(llama_sampler_chain_params) },
    };
    for (const auto & entry : table) {
        if (name && std::strcmp(name, entry.name) == 0) {
            return int32_t(entry.size);
        }
    }
    return -1;
}

}  // extern "C"
