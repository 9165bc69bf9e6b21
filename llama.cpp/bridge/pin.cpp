// Pinning memory for the GPU, so that copies to and from it run at full speed.  llama.cpp's own registration is
// read-only, but exports write into the arena.
#include "internal.h"

#include "ggml-backend.h"

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace {

// driver_types.h: pinned for all contexts, not only the current one.
constexpr unsigned CUDA_HOST_REGISTER_PORTABLE = 1;

// The CUDA runtime that ggml uses; the bridge is not linked to it, so that one source serves all backends.
struct Runtime {
    int (*host_register)(void *, size_t, unsigned) = nullptr;
    int (*host_unregister)(void *) = nullptr;
    const char * (*error_string)(int) = nullptr;
    int (*get_last_error)() = nullptr;

    // False where ggml was built without CUDA, or sees no device.
    bool find() {
        ggml_backend_reg_t reg = ggml_backend_reg_by_name("CUDA");
        if (!reg || ggml_backend_reg_dev_count(reg) == 0) {
            return false;
        }
        // Any function of the backend leads to its library, and that one to the runtime it is linked to.
        void *  own = ggml_backend_reg_get_proc_address(reg, "ggml_backend_register_host_buffer");
        Dl_info info{};
        void *  library = own && dladdr(own, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
        if (!library) {
            return false;
        }
        load(host_register, library, "cudaHostRegister");
        load(host_unregister, library, "cudaHostUnregister");
        load(error_string, library, "cudaGetErrorString");
        load(get_last_error, library, "cudaGetLastError");
        dlclose(library);  // ggml keeps it
        return host_register && host_unregister && error_string && get_last_error;
    }

    void check(int status, const char * what) const {
        if (status != 0) {
            get_last_error();  // or the next call of ggml's would find it
            throw std::runtime_error(std::string(what) + ": " + error_string(status));
        }
    }

private:
    template <typename F> static void load(F *& function, void * library, const char * name) {
        function = reinterpret_cast<F *>(dlsym(library, name));
    }
};

}  // namespace

int32_t lcpd_pin_host(void * p, uint64_t size, char ** err) {
    return lcpd::guarded<int32_t>(-1, err, [&] {
        Runtime cuda;
        if (!cuda.find()) {
            return 0;
        }
        cuda.check(cuda.host_register(p, size, CUDA_HOST_REGISTER_PORTABLE), "cudaHostRegister");
        return 1;
    });
}

int32_t lcpd_unpin_host(void * p, char ** err) {
    return lcpd::guarded<int32_t>(-1, err, [&] {
        Runtime cuda;
        if (!cuda.find()) {
            return 0;
        }
        cuda.check(cuda.host_unregister(p), "cudaHostUnregister");
        return 1;
    });
}
