/* A driver-API program: opens libcuda.so.1 as such programs do, asks for its functions by name and version,
 * and copies through every device. Prints one line and ends with 0 when what came back is what went there,
 * and a child that it forks in between is told by every call that it has no driver (3), as CUDA tells it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*get_proc_fn)(const char*, void**, int, uint64_t, int*);

static get_proc_fn get_proc;

static void* find(const char* name, int version) {
  void* function = NULL;
  int how = 0;
  if (get_proc(name, &function, version, 0, &how) != 0) printf("%s is not there\n", name);
  return function;
}

static int (*init)(unsigned);
static int (*count_devices)(int*);
static int (*retain)(void**, int);
static int (*set_current)(void*);
static int (*alloc)(uint64_t*, size_t);
static int (*to_device)(uint64_t, const void*, size_t);
static int (*to_host)(void*, uint64_t, size_t);
static int (*release_memory)(uint64_t);

/* Whether a child is refused what this process has, at once. */
static int child_is_refused(void* context, uint64_t memory) {
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    int devices = 0;
    uint64_t other = 0;
    void* own = NULL;
    alarm(20); /* a call that hangs */
    const int said[] = {
        init(0),          count_devices(&devices),     retain(&own, 0),           set_current(context),
        alloc(&other, 1), to_device(memory, &byte, 1), to_host(&byte, memory, 1), release_memory(memory)};
    for (size_t i = 0; i < sizeof said / sizeof *said; ++i)
      if (said[i] != 3) _exit(10 + (int)i);
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 0;
  if (status != 0) printf("the child of fork ended with status %x\n", (unsigned)status);
  return status == 0;
}

int main(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return printf("%s\n", dlerror()), 1;
  *(void**)&get_proc = dlsym(library, "cuGetProcAddress_v2");
  if (get_proc == NULL) return printf("no cuGetProcAddress_v2\n"), 1;

  *(void**)&init = find("cuInit", 2000);
  *(void**)&count_devices = find("cuDeviceGetCount", 2000);
  *(void**)&retain = find("cuDevicePrimaryCtxRetain", 7000);
  *(void**)&set_current = find("cuCtxSetCurrent", 4000);
  *(void**)&alloc = find("cuMemAlloc", 3020);
  *(void**)&to_device = find("cuMemcpyHtoD", 3020);
  *(void**)&to_host = find("cuMemcpyDtoH", 3020);
  *(void**)&release_memory = find("cuMemFree", 3020);
  if (!init || !count_devices || !retain || !set_current || !alloc || !to_device || !to_host ||
      !release_memory)
    return 1;

  int devices = 0, error = init(0);
  if (error != 0 || (error = count_devices(&devices)) != 0) return printf("no devices: error %d\n", error), 1;
  for (int device = 0; device < devices; ++device) {
    void* context = NULL;
    uint64_t memory = 0;
    char sent[4096], received[4096] = {0};
    memset(sent, 'a' + device, sizeof sent);
    if (retain(&context, device) || set_current(context) || alloc(&memory, sizeof sent))
      return printf("no memory\n"), 1;
    if (!child_is_refused(context, memory)) return 1;
    if (to_device(memory, sent, sizeof sent) || to_host(received, memory, sizeof sent))
      return printf("no copy\n"), 1;
    if (memcmp(sent, received, sizeof sent) != 0 || release_memory(memory))
      return printf("other bytes came back\n"), 1;
  }
  printf("copies are right on %d devices\n", devices);
  return 0;
}
