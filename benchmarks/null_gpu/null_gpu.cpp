// A CUDA runtime, driver, cuBLAS and cuDNN for a GPU that does not exist. Its memory is the host's and its copies are
// real; kernels are counted by name and not run, so that all results are noise.
//
// The functions have C linkage, so a function may ignore arguments that it does not declare. Function and argument
// order: the headers of CUDA 13 and cuDNN 9. A function that is missing here is the one of the real library.

#include <driver_types.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unordered_map>

namespace {

constexpr size_t GIB = 1ull << 30, PAGE = 4096, ALIGNMENT = 2ull << 20;
constexpr size_t LARGE_COPY = 1 << 20;  // device memory is not copied or filled beyond this size: its values are noise
constexpr int SMS = 132, THREADS = 1024, WARP = 32, SHARED = 49152, MAX_SHARED = 232448, SM_SHARED = 233472;
const char* const NAME = "no GPU (counts kernels as an H100 of 79 GiB)";

struct State {
    std::recursive_mutex mutex;
    std::unordered_map<const void*, std::string> kernels;  // names by the address of the host's function
    std::map<std::string, long> launches;                  // by kernel
    std::map<char*, size_t> blocks;                        // device memory: bytes by address
    long num_launches = 0, waits = 0;
    size_t used = 0, total = 79 * GIB;
};

State& state() {
    static State* instance = new State;  // is never destroyed: torch's destructors run late
    return *instance;
}

struct Locked {
    std::lock_guard<std::recursive_mutex> guard{state().mutex};
    State* operator->() { return &state(); }
};

void launched(const std::string& name) {
    Locked gpu;
    gpu->num_launches++;
    gpu->launches[name]++;
}

int launch(const void* kernel, dim3 grid, dim3 block) {
    Locked gpu;
    auto found = gpu->kernels.find(kernel);
    launched(found == gpu->kernels.end() ? "unknown kernel" : found->second);
    bool legal = grid.x && grid.y && grid.z && block.x && block.y && block.z && grid.y <= 65535 && grid.z <= 65535 &&
                 size_t(block.x) * block.y * block.z <= THREADS;
    return legal ? cudaSuccess : cudaErrorInvalidConfiguration;
}

bool on_device(const void* address) {
    Locked gpu;
    auto block = gpu->blocks.upper_bound((char*)address);
    return block != gpu->blocks.begin() && (--block, (char*)address < block->first + block->second);
}

int copy(void* to, const void* from, size_t bytes) {
    bool within = on_device(to) && on_device(from);
    if (within) launched("copy within the device");
    if (!within || bytes <= LARGE_COPY) memmove(to, from, bytes);
    return 0;
}

int fill(void* to, int value, size_t bytes) {
    launched("memset");
    if (bytes <= LARGE_COPY) memset(to, value, bytes);
    return 0;
}

int wait() { return Locked()->waits++, 0; }

template <class Value> int give(Value* to, Value value) {
    if (to) *to = value;
    return 0;
}

int handle(void** to) { return give(to, calloc(1, 256)); }

int attribute(int* value, int number) {  // the numbers of runtime and driver are the same
    switch (number) {
        case cudaDevAttrMaxThreadsPerBlock: return give(value, THREADS);
        case cudaDevAttrMaxSharedMemoryPerBlock: return give(value, SHARED);
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return give(value, MAX_SHARED);
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return give(value, SM_SHARED);
        case cudaDevAttrMultiProcessorCount: return give(value, SMS);
        case cudaDevAttrComputeCapabilityMajor: return give(value, 9);
        case cudaDevAttrComputeCapabilityMinor: return give(value, 0);
        case cudaDevAttrWarpSize: return give(value, WARP);
        case cudaDevAttrMaxGridDimX: return give(value, 2147483647);
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return give(value, 65535);
        case cudaDevAttrMaxThreadsPerMultiProcessor: return give(value, 2048);
        case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return give(value, 65536);
        case cudaDevAttrClockRate: return give(value, 1980000);
        case cudaDevAttrMemoryClockRate: return give(value, 2619000);
        case cudaDevAttrGlobalMemoryBusWidth: return give(value, 5120);
        case cudaDevAttrL2CacheSize: return give(value, 52428800);
        default: return give(value, 1);
    }
}

int zero() { return 0; }

}  // namespace

#define SUCCEEDS(function) int function() { return 0; }
#define CREATES(function) int function(void** to) { return handle(to); }
#define COUNTS(function) int function() { return launched(#function), 0; }
#define WAITS(function) int function() { return wait(); }

extern "C" {

// what a measurement reads
void null_gpu_reset() { Locked gpu; gpu->launches.clear(); gpu->num_launches = gpu->waits = 0; }
long null_gpu_launches() { return Locked()->num_launches; }
long null_gpu_waits() { return Locked()->waits; }
const char* null_gpu_kernels() {
    static std::string lines;
    Locked gpu;
    lines.clear();
    for (auto& [name, number] : gpu->launches) lines += std::to_string(number) + "\t" + name + "\n";
    return lines.c_str();
}

// kernels
void** __cudaRegisterFatBinary() { static void* module; return &module; }
SUCCEEDS(__cudaRegisterFatBinaryEnd) SUCCEEDS(__cudaUnregisterFatBinary) SUCCEEDS(__cudaRegisterVar)
char __cudaInitModule() { return 1; }
void __cudaRegisterFunction(void*, const char* host, char*, const char* name) { Locked()->kernels[host] = name; }
static thread_local struct { dim3 grid, block; size_t shared; void* stream; } pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
    pushed = {grid, block, shared, stream};
    return 0;
}
int __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void** stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
    return 0;
}
int __cudaGetKernel(const void** kernel, const void* host) { return give(kernel, host); }
static thread_local int last_error = 0;
static int noted(int error) { return error ? last_error = error : 0; }
int __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block) { return noted(launch(kernel, grid, block)); }
int cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block) { return noted(launch(kernel, grid, block)); }
int cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block) { return noted(launch(kernel, grid, block)); }
int cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel) {
    return noted(launch(kernel, config->gridDim, config->blockDim));
}
int cudaFuncGetAttributes(cudaFuncAttributes* attributes) {
    *attributes = {};
    attributes->maxThreadsPerBlock = THREADS, attributes->numRegs = 32, attributes->binaryVersion = 90;
    attributes->ptxVersion = 90, attributes->maxDynamicSharedSizeBytes = SHARED;
    return 0;
}
SUCCEEDS(cudaFuncSetAttribute)
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* number, const void*, int threads) {
    return give(number, threads > 64 ? 2048 / threads : 32);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* number, const void* kernel, int threads) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(number, kernel, threads);
}

// the device
int cudaGetDeviceCount(int* number) { return give(number, 1); }
int cudaGetDevice(int* device) { return give(device, 0); }
SUCCEEDS(cudaSetDevice) SUCCEEDS(cudaDeviceEnablePeerAccess) SUCCEEDS(cudaProfilerStart) SUCCEEDS(cudaProfilerStop)
int cudaDeviceCanAccessPeer(int* can) { return give(can, 0); }
int cudaDeviceGetAttribute(int* value, int number) { return attribute(value, number); }
int cudaDeviceGetPCIBusId(char* id, int size) { return snprintf(id, size, "0000:00:04.0"), 0; }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return give(least, 0), give(greatest, -5); }
int cudaDriverGetVersion(int* version) { return give(version, 13000); }
int cudaRuntimeGetVersion(int* version) { return give(version, 13000); }
const char* cudaGetErrorName(int error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError"; }
const char* cudaGetErrorString(int error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : error ? "invalid configuration argument" : "no error";
}
int cudaGetLastError() { int error = last_error; last_error = 0; return error; }
int cudaPeekAtLastError() { return last_error; }
int cudaGetDeviceProperties(cudaDeviceProp* device) {
    *device = {};
    strcpy(device->name, NAME);
    device->totalGlobalMem = state().total, device->sharedMemPerBlock = SHARED, device->regsPerBlock = 65536;
    device->warpSize = WARP, device->memPitch = 2147483647, device->maxThreadsPerBlock = THREADS;
    device->maxThreadsDim[0] = device->maxThreadsDim[1] = THREADS, device->maxThreadsDim[2] = 64;
    device->maxGridSize[0] = 2147483647, device->maxGridSize[1] = device->maxGridSize[2] = 65535;
    device->totalConstMem = 65536, device->major = 9, device->minor = 0, device->textureAlignment = 512;
    device->multiProcessorCount = SMS, device->canMapHostMemory = 1, device->concurrentKernels = 1;
    device->asyncEngineCount = 3, device->unifiedAddressing = 1, device->memoryBusWidth = 5120;
    device->l2CacheSize = 52428800, device->maxThreadsPerMultiProcessor = 2048, device->managedMemory = 1;
    device->sharedMemPerMultiprocessor = SM_SHARED, device->regsPerMultiprocessor = 65536;
    device->sharedMemPerBlockOptin = MAX_SHARED, device->cooperativeLaunch = 1, device->clusterLaunch = 1;
    return 0;
}
int cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long, int* status) {
    return give(status, 0), give(function, (void*)zero);
}

// memory
int cudaMalloc(char** address, size_t bytes) {
    Locked gpu;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (gpu->used + bytes > gpu->total) return noted(cudaErrorMemoryAllocation);
    void* mapped = mmap(nullptr, bytes + ALIGNMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return noted(cudaErrorMemoryAllocation);
    *address = (char*)(((size_t)mapped + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    gpu->blocks[*address] = bytes;
    gpu->used += bytes;
    return 0;
}
int cudaFree(char* address) {
    Locked gpu;
    auto block = gpu->blocks.find(address);
    if (block == gpu->blocks.end()) return 0;
    gpu->used -= block->second;
    madvise(address, block->second, MADV_DONTNEED);  // the addresses stay reserved
    gpu->blocks.erase(block);
    return 0;
}
int cudaMemGetInfo(size_t* free, size_t* total) {
    Locked gpu;
    return give(free, gpu->total - gpu->used), give(total, gpu->total);
}
int cudaHostAlloc(void** address, size_t bytes) {
    return give(address, aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE));
}
int cudaFreeHost(void* address) { return free(address), 0; }
SUCCEEDS(cudaHostRegister) SUCCEEDS(cudaHostUnregister) SUCCEEDS(cudaMemcpyToSymbol)
SUCCEEDS(cudaMemPoolSetAccess) SUCCEEDS(cudaMemPoolSetAttribute) SUCCEEDS(cudaMemPoolTrimTo)
int cudaMemPoolGetAttribute(void*, int, size_t* value) { return give<size_t>(value, 0); }
int cudaDeviceGetDefaultMemPool(void** pool) { return handle(pool); }
int cudaGetSymbolAddress(void** address) { static char symbol[65536]; return give(address, (void*)symbol); }
int cudaMemcpyAsync(void* to, const void* from, size_t bytes) { return copy(to, from, bytes); }
int cudaMemcpy(void* to, const void* from, size_t bytes) { return copy(to, from, bytes), wait(); }
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes) { return copy(to, from, bytes); }
int cudaMemset(void* to, int value, size_t bytes) { return fill(to, value, bytes); }
int cudaMemsetAsync(void* to, int value, size_t bytes) { return fill(to, value, bytes); }
int cudaPointerGetAttributes(cudaPointerAttributes* attributes, void* address) {
    *attributes = {};
    attributes->type = on_device(address) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    attributes->devicePointer = address;
    return 0;
}

// streams and events
WAITS(cudaDeviceSynchronize) WAITS(cudaStreamSynchronize) WAITS(cudaEventSynchronize)
CREATES(cudaStreamCreate) CREATES(cudaStreamCreateWithPriority) CREATES(cudaEventCreate) CREATES(cudaEventCreateWithFlags)
SUCCEEDS(cudaStreamDestroy) SUCCEEDS(cudaStreamQuery) SUCCEEDS(cudaStreamWaitEvent) SUCCEEDS(cudaEventDestroy)
SUCCEEDS(cudaEventQuery) SUCCEEDS(cudaEventRecord) SUCCEEDS(cudaEventRecordWithFlags)
SUCCEEDS(cudaThreadExchangeStreamCaptureMode)
int cudaEventElapsedTime(float* ms) { return give(ms, 0.01f); }
int cudaStreamGetPriority(void*, int* priority) { return give(priority, 0); }
int cudaStreamIsCapturing(void*, int* status) { return give(status, 0); }
int cudaStreamGetCaptureInfo(void*, int* status) { return give(status, 0); }
int cudaLaunchHostFunc(void*, void (*function)(void*), void* data) { return function(data), 0; }
int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data) { return function(stream, 0, data), 0; }

// cuBLAS
CREATES(cublasCreate_v2) SUCCEEDS(cublasDestroy_v2) SUCCEEDS(cublasSetStream_v2) SUCCEEDS(cublasSetWorkspace_v2)
SUCCEEDS(cublasSetMathMode) SUCCEEDS(cublasSetPointerMode_v2)
int cublasGetMathMode(void*, int* mode) { return give(mode, 0); }
int cublasGetPointerMode_v2(void*, int* mode) { return give(mode, 0); }
COUNTS(cublasGemmEx) COUNTS(cublasGemmStridedBatchedEx) COUNTS(cublasSgemm_v2) COUNTS(cublasDgemm_v2) COUNTS(cublasSgemmEx)
COUNTS(cublasSgemmStridedBatched) COUNTS(cublasDgemmStridedBatched) COUNTS(cublasSgemv_v2) COUNTS(cublasDgemv_v2)
COUNTS(cublasSdot_v2) COUNTS(cublasDdot_v2) COUNTS(cublasDotEx)
size_t cublasLtGetVersion() { return 130100; }
CREATES(cublasLtMatrixLayoutCreate) CREATES(cublasLtMatmulDescCreate) CREATES(cublasLtMatmulPreferenceCreate)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute) SUCCEEDS(cublasLtMatmulDescSetAttribute) SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
int cublasLtMatrixLayoutDestroy(void* layout) { return free(layout), 0; }
int cublasLtMatmulDescDestroy(void* description) { return free(description), 0; }
int cublasLtMatmulPreferenceDestroy(void* preference) { return free(preference), 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* result, int* number) {
    return memset(result, 0, 96), give(number, 1);  // the status of the algorithm is success
}
COUNTS(cublasLtMatmul)

// cuDNN: convolutions by the interface that TORCH_CUDNN_V8_API_DISABLED=1 chooses, and recurrent layers
size_t cudnnGetVersion() { return 99999; }
size_t cudnnGetCudartVersion() { return 13000; }
int cudnnGetProperty(int property, int* value) { return give(value, property == 0 ? 9 : 99); }  // 9.99.99
const char* cudnnGetErrorString(int) { return "an error"; }
void cudnnGetLastErrorString(char* text, size_t size) { snprintf(text, size, "an error"); }
CREATES(cudnnCreate) SUCCEEDS(cudnnSetStream)
CREATES(cudnnCreateTensorDescriptor) CREATES(cudnnCreateFilterDescriptor) CREATES(cudnnCreateConvolutionDescriptor)
int cudnnDestroyTensorDescriptor(void* description) { return free(description), 0; }
int cudnnDestroyFilterDescriptor(void* description) { return free(description), 0; }
int cudnnDestroyConvolutionDescriptor(void* description) { return free(description), 0; }
SUCCEEDS(cudnnSetTensorNdDescriptor) SUCCEEDS(cudnnSetFilterNdDescriptor) SUCCEEDS(cudnnSetConvolutionGroupCount)
SUCCEEDS(cudnnSetConvolutionMathType) SUCCEEDS(cudnnSetConvolutionNdDescriptor)
struct Algorithm { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; };
static int one_algorithm(Algorithm* result, int* number) {
    *result = {1, 0, 0.0f, 0, 1, 0, {}};
    return give(number, 1);
}
#define CHOOSES(function) \
    int function(void*, void*, void*, void*, void*, int, int* number, Algorithm* result) { return one_algorithm(result, number); }
CHOOSES(cudnnGetConvolutionForwardAlgorithm_v7) CHOOSES(cudnnGetConvolutionBackwardDataAlgorithm_v7)
CHOOSES(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
#define NO_WORKSPACE(function) \
    int function(void*, void*, void*, void*, void*, int, size_t* bytes) { return give<size_t>(bytes, 0); }
NO_WORKSPACE(cudnnGetConvolutionForwardWorkspaceSize) NO_WORKSPACE(cudnnGetConvolutionBackwardDataWorkspaceSize)
NO_WORKSPACE(cudnnGetConvolutionBackwardFilterWorkspaceSize)
COUNTS(cudnnConvolutionForward) COUNTS(cudnnConvolutionBackwardData) COUNTS(cudnnConvolutionBackwardFilter)

struct Recurrent { int gates, directions, inputs, hidden, layers, bytes; bool bias; };
struct Matrix { int type, rows, columns; };
CREATES(cudnnCreateRNNDescriptor) CREATES(cudnnCreateRNNDataDescriptor) CREATES(cudnnCreateDropoutDescriptor)
SUCCEEDS(cudnnDestroyRNNDescriptor) SUCCEEDS(cudnnDestroyRNNDataDescriptor) SUCCEEDS(cudnnDestroyDropoutDescriptor)
SUCCEEDS(cudnnSetRNNDataDescriptor) SUCCEEDS(cudnnSetDropoutDescriptor) SUCCEEDS(cudnnRestoreDropoutDescriptor)
int cudnnDropoutGetStatesSize(void*, size_t* bytes) { return give<size_t>(bytes, 4096); }
static int bytes_of(int type) { return type == 1 ? 8 : type == 0 ? 4 : 2; }  // double, float; half and bfloat16
int cudnnSetRNNDescriptor_v8(Recurrent* layers, int, int cell, int bias, int direction, int, int type, int, int, int inputs, int hidden, int, int number) {
    *layers = {cell == 2 ? 4 : cell == 3 ? 3 : 1, direction + 1, inputs, hidden, number, bytes_of(type), bias != 0};
    return 0;
}
static size_t numbers_before(const Recurrent& rnn, int layer, int kind, bool of_bias) {
    // the weights of all layers, then their biases; `kind` counts the matrices of inputs, then those of states
    size_t weights = 0, biases = 0, width = rnn.gates * rnn.hidden;
    for (int number = 0; number < rnn.layers * rnn.directions; number++) {
        size_t inputs = number < rnn.directions ? rnn.inputs : rnn.hidden * rnn.directions;
        if (!of_bias && number == layer)
            return weights + rnn.hidden * (kind < rnn.gates ? kind * inputs : rnn.gates * inputs + (kind - rnn.gates) * size_t(rnn.hidden));
        if (of_bias && number == layer) biases = number * 2 * width + kind * size_t(rnn.hidden);
        weights += width * (inputs + rnn.hidden);
    }
    return weights + (of_bias ? biases : rnn.bias ? rnn.layers * rnn.directions * 2 * width : 0);
}
int cudnnGetRNNWeightSpaceSize(void*, Recurrent* rnn, size_t* bytes) {
    return give(bytes, numbers_before(*rnn, -1, 0, false) * rnn->bytes);
}
int cudnnGetRNNWeightParams(void*, Recurrent* rnn, int layer, size_t, char* weights, int kind, Matrix* matrix, char** matrix_address, Matrix* bias, char** bias_address) {
    int inputs = kind >= rnn->gates ? rnn->hidden : layer < rnn->directions ? rnn->inputs : rnn->hidden * rnn->directions;
    if (kind >= 2 * rnn->gates) return give<char*>(matrix_address, nullptr), give<char*>(bias_address, nullptr);
    give(matrix, {0, rnn->hidden, inputs}), give(bias, {0, rnn->hidden, 1});  // torch asks for one of the two
    give(matrix_address, weights + numbers_before(*rnn, layer, kind, false) * rnn->bytes);
    return give(bias_address, rnn->bias ? weights + numbers_before(*rnn, layer, kind, true) * rnn->bytes : nullptr);
}
int cudnnGetTensorNdDescriptor(Matrix* matrix, int, int* type, int* number, int* sizes, int* strides) {
    sizes[0] = 1, sizes[1] = matrix->rows, sizes[2] = matrix->columns;
    strides[0] = matrix->rows * matrix->columns, strides[1] = matrix->columns, strides[2] = 1;
    return give(type, matrix->type), give(number, 3);
}
int cudnnGetRNNTempSpaceSizes(void*, void*, int, void*, size_t* work, size_t* reserve) {
    return give<size_t>(work, 0), give<size_t>(reserve, 0);
}
COUNTS(cudnnRNNForward) COUNTS(cudnnRNNBackwardData_v8) COUNTS(cudnnRNNBackwardWeights_v8)

// the driver, for Triton and Inductor
SUCCEEDS(cuInit) SUCCEEDS(cuCtxSetCurrent) SUCCEEDS(cuCtxPushCurrent_v2) SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuFuncSetCacheConfig) SUCCEEDS(cuModuleUnload) SUCCEEDS(cuTensorMapEncodeTiled) SUCCEEDS(cuCtxSetLimit)
WAITS(cuCtxSynchronize) WAITS(cuStreamSynchronize)
int cuCtxGetLimit(size_t* limit) { return give<size_t>(limit, 0); }
int cuDriverGetVersion(int* version) { return give(version, 13000); }
int cuDeviceGetCount(int* number) { return give(number, 1); }
int cuDeviceGet(int* device, int number) { return give(device, number); }
int cuDeviceGetName(char* name, int size) { return snprintf(name, size, "%s", NAME), 0; }
int cuDeviceGetAttribute(int* value, int number) { return attribute(value, number); }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return give(flags, 0u), give(active, 1); }
static char context;
int cuDevicePrimaryCtxRetain(void** to) { return give(to, (void*)&context); }
int cuCtxGetCurrent(void** to) { return give(to, (void*)&context); }
int cuCtxPopCurrent_v2(void** to) { return give(to, (void*)&context); }
int cuCtxGetDevice(int* device) { return give(device, 0); }
int cuGetErrorString(int, const char** text) { return give(text, "an error"); }
int cuGetErrorName(int, const char** text) { return give(text, "an error"); }
int cuModuleLoad(void** module) { return handle(module); }
int cuModuleLoadData(void** module) { return handle(module); }
int cuModuleLoadDataEx(void** module) { return handle(module); }
int cuModuleGetFunction(char** function, void*, const char* name) { return give(function, strdup(name)); }
int cuFuncGetAttribute(int* value, int number) { return give(value, number == 0 ? THREADS : number == 4 ? 32 : 0); }
int cuLaunchKernel(const char* function) { return launched(function), 0; }
int cuLaunchCooperativeKernel(const char* function) { return launched(function), 0; }
int cuLaunchKernelEx(void*, const char* function) { return launched(function), 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* number) { return give(number, 2); }
int cuPointerGetAttribute(void** value, int, void* address) { return give(value, address); }
int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long, int* status) {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *function = library ? dlsym(library, name) : nullptr;
    if (!*function && library) *function = dlsym(library, (std::string(name) + "_v2").c_str());
    give(status, *function ? 0 : 1);
    return *function ? 0 : 500;
}
}
