/* CUDA and cuDNN for a session that is made, never run: what asks the device is answered here, all else
   (generated after this, see __init__.py) says success. CUDA_STUB_SM is the compute capability it pretends to have. */
#include <driver_types.h>
#include <stdlib.h>
#include <string.h>

static int sm(void) {
  const char *s = getenv("CUDA_STUB_SM");
  return s ? atoi(s) : 89;
}
static int allocate(void **p, size_t n) { return posix_memalign(p, 256, n ? n : 256); }
static int handle(void **p) { /* any address that is not null */
  *p = malloc(4096);
  memset(*p, 0, 4096);
  return 0;
}

int cudaGetDeviceCount(int *n) { return *n = 1, 0; }
int cudaGetDevice(int *d) { return *d = 0; }
int cudaDriverGetVersion(int *v) { return *v = 13000, 0; }
int cudaRuntimeGetVersion(int *v) { return *v = 13000, 0; }
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  p->major = sm() / 10, p->minor = sm() % 10;
  p->totalGlobalMem = 64ull << 30, p->multiProcessorCount = 58, p->warpSize = 32;
  p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 1536, p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 101376, p->sharedMemPerMultiprocessor = 102400;
  for (int i = 0; i < 3; i++) p->maxThreadsDim[i] = i < 2 ? 1024 : 64, p->maxGridSize[i] = 65535;
  return 0;
}
int cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  *v = a == cudaDevAttrComputeCapabilityMajor ? sm() / 10 : a == cudaDevAttrComputeCapabilityMinor ? sm() % 10
     : a == cudaDevAttrMultiProcessorCount ? 58 : a == cudaDevAttrWarpSize ? 32
     : a == cudaDevAttrMaxThreadsPerBlock ? 1024 : a == cudaDevAttrMaxSharedMemoryPerBlock ? 49152
     : a == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 101376 : 0;
  return 0;
}
int cudaMemGetInfo(size_t *left, size_t *all) { return *left = *all = 64ull << 30, 0; }
int cudaMemPoolGetAttribute(void *p, int a, void *v) { return memset(v, 0, 8), 0; }
int cudaMalloc(void **p, size_t n) { return allocate(p, n); }
int cudaMallocHost(void **p, size_t n) { return allocate(p, n); }
int cudaHostAlloc(void **p, size_t n, unsigned f) { return allocate(p, n); }
int cudaMallocFromPoolAsync(void **p, size_t n, void *pool, void *s) { return allocate(p, n); }
int cudaFree(void *p) { return free(p), 0; }
int cudaFreeHost(void *p) { return free(p), 0; }
int cudaFreeAsync(void *p, void *s) { return free(p), 0; }
int cudaMemcpy(void *to, const void *from, size_t n, int k) { return memmove(to, from, n), 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t n, int k, void *s) { return memmove(to, from, n), 0; }
int cudaMemset(void *p, int v, size_t n) { return memset(p, v, n), 0; }
int cudaMemsetAsync(void *p, int v, size_t n, void *s) { return memset(p, v, n), 0; }
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeDevice;
  return 0;
}
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s, unsigned g) {
  return *n = 1, 0;
}
int cudaStreamIsCapturing(void *s, int *state) { return *state = 0; }
const char *cudaGetErrorString(int e) { return "stub"; }
const char *cudaGetErrorName(int e) { return "stub"; }
int cudaEventElapsedTime(float *ms, void *a, void *b) { return *ms = 1, 0; }
int cudaLaunchHostFunc(void *s, void (*f)(void *), void *data) { return f(data), 0; }
void **__cudaRegisterFatBinary(void *image) {
  static void *registered;
  return &registered;
}
static int driver(void) { return 0; }
int cudaGetDriverEntryPointByVersion(const char *n, void **f, unsigned v, unsigned long long g, void *r) {
  return *f = (void *)driver, 0;
}
int cublasGetMathMode(void *h, int *mode) { return *mode = 0; }
size_t cudnnGetVersion(void) { return 91300; }
size_t cudnnGetCudartVersion(void) { return 13000; }
const char *cudnnGetErrorString(int e) { return "stub"; }
int cudnnGetProperty(int which, int *value) { return *value = 9, 0; }
int cudnnDropoutGetStatesSize(void *h, size_t *n) { return *n = 1 << 16, 0; }
int cudnnGetRNNWeightSpaceSize(void *h, void *d, size_t *n) { return *n = 64 << 20, 0; }
int cudnnGetRNNWeightParams(void *h, void *d, int p, size_t n, const void *w, int l, void *md, void **m, void *bd,
                            void **b) {
  return *m = *b = (void *)w, 0;
}
int cudnnGetRNNTempSpaceSizes(void *h, void *d, int mode, void *x, size_t *work, size_t *reserve) {
  *work = 1 << 20;
  if (reserve) *reserve = 1 << 20;
  return 0;
}
/* Every weight of a recurrent network has one element, at the start of the memory for all of them. */
int cudnnGetTensorNdDescriptor(void *d, int most, int *type, int *rank, int *sizes, int *strides) {
  for (int i = 0; i < most; i++) sizes[i] = strides[i] = 1;
  return *type = 0, *rank = most, 0;
}
