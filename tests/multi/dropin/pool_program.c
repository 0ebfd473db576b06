/* A C program that uses libcenote-pool and is told what to do, one command a line: from descriptor 3, which
 * also takes the answers, or from its arguments, with the answers on standard output. An answer is one line:
 * a status number and a text. Handles are numbered by whoever commands: P a pool, L a lease, G a session. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cenote/pool.h"

enum { kSlots = 4, kMostGpus = 8, kCount = 1000 };

static cenote_pool* pools[kSlots];
static cenote_lease* leases[kSlots];
static cenote_gpus* sessions[kSlots];
static unsigned gpus_of[kSlots];
static FILE* answers;

/* Always 0: so that a command can end with it. */
static int answer(cenote_status status, const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (status != CENOTE_SUCCESS) snprintf(text, sizeof text, "%s", cenote_pool_last_error());
  for (char* at = text; *at != '\0'; ++at) {
    if (*at == '\n') *at = '|';
  }
  fprintf(answers, "%d %s\n", (int)status, text);
  fflush(answers);
  return 0;
}

/* connect P CONFIG|env [helper=PATH] [tls=FOLDER] [broker=HOST:PORT] */
static int do_connect(char** words, int count) {
  cenote_pool_options options = {.size = sizeof options};
  if (strcmp(words[2], "env") == 0) {
    options.read_environment = 1;
  } else {
    options.config_file = words[2];
  }
  for (int i = 3; i < count; ++i) {
    if (strncmp(words[i], "helper=", 7) == 0) options.helper = words[i] + 7;
    if (strncmp(words[i], "tls=", 4) == 0) options.tls_dir = words[i] + 4;
    if (strncmp(words[i], "broker=", 7) == 0) options.broker = words[i] + 7;
  }
  return answer(cenote_pool_connect(&options, &pools[atoi(words[1])]), "connected");
}

/* lease P L GPUS [TTL_MS [TIMEOUT_MS [WAIT_MS]]] */
static int do_lease(char** words, int count) {
  cenote_lease_options options = {.size = sizeof options, .gpus = (uint32_t)atoi(words[3]), .note = "from C"};
  if (count > 4) options.ttl_ms = (uint32_t)atoi(words[4]);
  options.timeout_ms = count > 5 ? (uint32_t)atoi(words[5]) : 60000;
  if (count > 6) options.wait_ms = (uint32_t)atoi(words[6]);
  cenote_lease** lease = &leases[atoi(words[2])];
  const cenote_status status = cenote_pool_lease(pools[atoi(words[1])], &options, lease);
  return answer(status, "%s", status == CENOTE_SUCCESS ? cenote_lease_id(*lease) : "");
}

static int do_info(char** words) {
  cenote_gpu_info info = {.size = sizeof info};
  const cenote_lease* lease = leases[atoi(words[1])];
  const cenote_status status = cenote_lease_gpu(lease, (uint32_t)atoi(words[2]), &info);
  return answer(status, "%u %s on %s %llu %s", cenote_lease_gpus(lease), info.model, info.agent,
                (unsigned long long)info.memory_bytes, info.uuid);
}

static int do_open(char** words) {
  const int lease = atoi(words[1]), session = atoi(words[2]);
  gpus_of[session] = cenote_lease_gpus(leases[lease]);
  return answer(cenote_lease_open(leases[lease], 60000, &sessions[session]), "open");
}

static char* read_text(const char* path, size_t* bytes) {
  static char text[1 << 20];
  FILE* file = fopen(path, "r");
  if (file == NULL) return NULL;
  *bytes = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[(*bytes)++] = '\0';
  return text;
}

#define TRY(call)                                          \
  do {                                                     \
    const cenote_status tried = (call);                    \
    if (tried != CENOTE_SUCCESS) return answer(tried, ""); \
  } while (0)

/* Every device computes y = (d + 2) x + y with a kernel, then all of them sum up their y. */
static int do_work(char** words) {
  cenote_gpus* gpus = sessions[atoi(words[1])];
  const unsigned devices = gpus_of[atoi(words[1])];
  size_t bytes = 0;
  const char* ptx = read_text(words[2], &bytes);
  if (ptx == NULL) return answer(CENOTE_SUCCESS, "no PTX");
  float x[kCount], y[kCount];
  uint64_t sums[kMostGpus], inputs[kMostGpus];
  for (unsigned d = 0; d < devices; ++d) {
    uint64_t on_device = 0;
    for (int i = 0; i < kCount; ++i) x[i] = (float)i, y[i] = 1.0f;
    TRY(cenote_gpu_alloc(gpus, d, sizeof x, &on_device));
    TRY(cenote_gpu_alloc(gpus, d, sizeof y, &inputs[d]));
    TRY(cenote_gpu_alloc(gpus, d, sizeof y, &sums[d]));
    TRY(cenote_gpu_upload(gpus, d, on_device, x, sizeof x));
    TRY(cenote_gpu_upload(gpus, d, inputs[d], y, sizeof y));
    cenote_module* module = NULL;
    cenote_kernel* kernel = NULL;
    TRY(cenote_gpu_load(gpus, d, ptx, bytes, &module));
    TRY(cenote_module_kernel(module, "cenote_saxpy", &kernel));
    float a = (float)(d + 2);
    unsigned count = kCount;
    void* arguments[] = {&a, &on_device, &inputs[d], &count};
    const uint32_t grid[3] = {(kCount + 127) / 128, 1, 1}, block[3] = {128, 1, 1};
    TRY(cenote_kernel_launch(kernel, grid, block, 0, arguments));
    TRY(cenote_gpu_free(gpus, d, on_device));
  }
  TRY(cenote_gpus_allreduce(gpus, inputs, sums, kCount, CENOTE_FLOAT32, CENOTE_SUM));
  int wrong = 0;
  for (unsigned d = 0; d < devices; ++d) {
    TRY(cenote_gpu_synchronize(gpus, d));
    TRY(cenote_gpu_download(gpus, d, y, sums[d], sizeof y));
    float factor = 0;
    for (unsigned other = 0; other < devices; ++other) factor += (float)(other + 2);
    for (int i = 0; i < kCount; ++i) wrong += y[i] != factor * (float)i + (float)devices;
    TRY(cenote_gpu_free(gpus, d, inputs[d]));
    TRY(cenote_gpu_free(gpus, d, sums[d]));
  }
  return answer(CENOTE_SUCCESS, "%d wrong on %u devices", wrong, devices);
}

/* What no handle, no pointer and no such device is answered with, by name. */
static int do_bad(char** words) {
  cenote_gpus* gpus = sessions[atoi(words[1])];
  cenote_pool* pool = NULL;
  cenote_lease* lease = NULL;
  cenote_module* module = NULL;
  cenote_kernel* kernel = NULL;
  cenote_pool_options no_size = {.size = 0};
  uint64_t address = 0;
  char byte = 0;
  const uint32_t one[3] = {1, 1, 1};
  const cenote_status met[] = {
      cenote_pool_connect(&no_size, &pool),
      cenote_pool_connect(NULL, NULL),
      cenote_pool_lease(NULL, NULL, &lease),
      cenote_pool_adopt(NULL, NULL, &lease),
      cenote_lease_release(NULL, 0),
      cenote_lease_state(NULL),
      cenote_lease_gpu(NULL, 0, NULL),
      cenote_lease_gpu(leases[0], 99, &(cenote_gpu_info){.size = sizeof(cenote_gpu_info)}),
      cenote_lease_open(NULL, 0, &gpus),
      cenote_gpu_alloc(NULL, 0, 1, &address),
      cenote_gpu_alloc(gpus, 99, 1, &address),
      cenote_gpu_alloc(gpus, 0, 1, NULL),
      cenote_gpu_upload(gpus, 0, 0, NULL, 1),
      cenote_gpu_download(gpus, 99, &byte, 0, 1),
      cenote_gpu_load(gpus, 0, NULL, 1, &module),
      cenote_gpu_load(gpus, 0, "", 0, &module),
      cenote_module_kernel(NULL, "x", &kernel),
      cenote_kernel_launch(NULL, one, one, 0, NULL),
      cenote_gpu_synchronize(NULL, 0),
      cenote_gpus_allreduce(gpus, NULL, NULL, 1, CENOTE_FLOAT32, CENOTE_SUM),
  };
  const int count = (int)(sizeof met / sizeof *met);
  int refused = 0, told = strlen(cenote_pool_last_error()) > 0;
  for (int i = 0; i < count; ++i) refused += met[i] == CENOTE_INVALID_ARGUMENT;
  cenote_lease_destroy(NULL);
  cenote_pool_destroy(NULL);
  cenote_gpus_close(NULL);
  const int nobodys = (int)cenote_gpu_free(gpus, 0, 4711);
  const int nowhere = (int)cenote_gpu_download(gpus, 0, &byte, 4711, 1);
  const int no_module = (int)cenote_gpu_load(gpus, 0, "no module", 10, &module);
  return answer(CENOTE_SUCCESS, "%d of %d refused, told %d, addresses %d %d, module %d", refused, count, told,
                nobodys, nowhere, no_module);
}

static void* one_thread(void* pool) {
  intptr_t met = 0;
  for (int round = 0; round < 3 && met == 0; ++round) {
    cenote_lease_options options = {.size = sizeof options, .gpus = 1, .wait_ms = 60000};
    cenote_lease* lease = NULL;
    cenote_gpus* gpus = NULL;
    uint64_t address = 0;
    char sent[256], received[256] = {0};
    memset(sent, round + 1, sizeof sent);
    met = cenote_pool_lease(pool, &options, &lease);
    if (met == 0) met = cenote_lease_state(lease);
    if (met == 0) met = cenote_lease_open(lease, 60000, &gpus);
    if (met == 0) met = cenote_gpu_alloc(gpus, 0, sizeof sent, &address);
    if (met == 0) met = cenote_gpu_upload(gpus, 0, address, sent, sizeof sent);
    if (met == 0) met = cenote_gpu_download(gpus, 0, received, address, sizeof sent);
    if (met == 0 && memcmp(sent, received, sizeof sent) != 0) met = -1;
    cenote_gpus_close(gpus);
    if (met == 0) met = cenote_lease_release(lease, 60000);
    if (met != 0) fprintf(stderr, "thread: %s\n", cenote_pool_last_error());
    cenote_lease_destroy(lease);
  }
  return (void*)met;
}

/* threads P N: each leases, works and gives back, three times. */
static int do_threads(char** words) {
  pthread_t threads[16];
  const int count = atoi(words[2]);
  int failed = 0;
  for (int i = 0; i < count; ++i) pthread_create(&threads[i], NULL, one_thread, pools[atoi(words[1])]);
  for (int i = 0; i < count; ++i) {
    void* met = NULL;
    pthread_join(threads[i], &met);
    failed += met != NULL;
  }
  return answer(CENOTE_SUCCESS, "%d of %d failed", failed, count);
}

/* fork P L: what a child may not do with its parent's handles; it destroys them all the same. */
static int do_fork(char** words) {
  const pid_t child = fork();
  if (child == 0) {
    const int pool = atoi(words[1]), lease = atoi(words[2]);
    cenote_lease* made = NULL;
    const int refused = cenote_lease_state(leases[lease]) == CENOTE_INVALID_ARGUMENT &&
                        cenote_lease_release(leases[lease], 1000) == CENOTE_INVALID_ARGUMENT &&
                        cenote_pool_lease(pools[pool], NULL, &made) == CENOTE_INVALID_ARGUMENT &&
                        strstr(cenote_pool_last_error(), "fork") != NULL;
    cenote_lease_destroy(leases[lease]);
    cenote_pool_destroy(pools[pool]);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return answer(CENOTE_SUCCESS, "child %d", status);
}

/* forkgpus G PTX: no call on its parent's devices is a child's, and what it closes stays open in the parent.
 */
static int do_fork_gpus(char** words) {
  cenote_gpus* gpus = sessions[atoi(words[1])];
  size_t bytes = 0;
  const char* ptx = read_text(words[2], &bytes);
  uint64_t address = 0;
  char sent[64] = "the parent's", received[64] = "";
  cenote_module* module = NULL;
  cenote_kernel* kernel = NULL;
  TRY(cenote_gpu_alloc(gpus, 0, sizeof sent, &address));
  TRY(cenote_gpu_load(gpus, 0, ptx, bytes, &module));
  TRY(cenote_module_kernel(module, "cenote_saxpy", &kernel));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const uint32_t one[3] = {1, 1, 1};
    uint64_t other = 0;
    void* arguments[] = {&other, &other, &other, &other};
    const cenote_status met[] = {
        cenote_gpu_memory(gpus, 0, NULL, NULL),
        cenote_gpu_alloc(gpus, 0, 64, &other),
        cenote_gpu_free(gpus, 0, address),
        cenote_gpu_upload(gpus, 0, address, received, sizeof received),
        cenote_gpu_download(gpus, 0, received, address, sizeof received),
        cenote_gpu_load(gpus, 0, ptx, bytes, &module),
        cenote_module_kernel(module, "cenote_saxpy", &kernel),
        cenote_kernel_launch(kernel, one, one, 0, arguments),
        cenote_gpu_synchronize(gpus, 0),
        cenote_gpus_allreduce(gpus, &address, &address, 1, CENOTE_FLOAT32, CENOTE_SUM),
    };
    int wrong = strstr(cenote_pool_last_error(), "fork") == NULL;
    for (size_t i = 0; i < sizeof met / sizeof *met; ++i) wrong += met[i] != CENOTE_INVALID_ARGUMENT;
    cenote_gpus_close(gpus);
    _exit(wrong);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (status != 0) return answer(CENOTE_SUCCESS, "child %d", status);
  TRY(cenote_gpu_upload(gpus, 0, address, sent, sizeof sent));
  TRY(cenote_gpu_download(gpus, 0, received, address, sizeof received));
  TRY(cenote_gpu_free(gpus, 0, address));
  return answer(CENOTE_SUCCESS, "child 0, then %s", received);
}

/* reduce G TYPE OP */
static int do_reduce(char** words) {
  cenote_gpus* gpus = sessions[atoi(words[1])];
  uint64_t buffers[kMostGpus];
  for (unsigned d = 0; d < gpus_of[atoi(words[1])]; ++d) TRY(cenote_gpu_alloc(gpus, d, 64, &buffers[d]));
  TRY(cenote_gpus_allreduce(gpus, buffers, buffers, 1, (cenote_type)atoi(words[2]),
                            (cenote_op)atoi(words[3])));
  return answer(cenote_gpu_synchronize(gpus, 0), "reduced");
}

/* detail G PTX: an error after another one, with a call between them that succeeds. */
static int do_detail(char** words) {
  cenote_gpus* gpus = sessions[atoi(words[1])];
  size_t bytes = 0;
  const char* ptx = read_text(words[2], &bytes);
  uint64_t address = 0;
  cenote_module* module = NULL;
  cenote_kernel* kernel = NULL;
  TRY(cenote_gpu_load(gpus, 0, ptx, bytes, &module));
  if (cenote_module_kernel(module, "nope", &kernel) == CENOTE_SUCCESS) return answer(CENOTE_SUCCESS, "found");
  if (strstr(cenote_pool_last_error(), "nope") == NULL) return answer(CENOTE_SUCCESS, "not named");
  TRY(cenote_gpu_memory(gpus, 0, NULL, NULL));
  return answer(cenote_gpu_alloc(gpus, 0, (size_t)1 << 50, &address), "allocated");
}

/* arguments G PTX: a launch without the third argument. */
static int do_arguments(char** words) {
  cenote_gpus* gpus = sessions[atoi(words[1])];
  size_t bytes = 0;
  const char* ptx = read_text(words[2], &bytes);
  cenote_module* module = NULL;
  cenote_kernel* kernel = NULL;
  const uint32_t one[3] = {1, 1, 1};
  uint64_t value = 0;
  void* arguments[] = {&value, &value, NULL, &value};
  TRY(cenote_gpu_load(gpus, 0, ptx, bytes, &module));
  TRY(cenote_module_kernel(module, "cenote_saxpy", &kernel));
  if (cenote_kernel_launch(kernel, one, one, 0, NULL) != CENOTE_INVALID_ARGUMENT)
    return answer(CENOTE_SUCCESS, "no arguments at all are taken");
  return answer(cenote_kernel_launch(kernel, one, one, 0, arguments), "launched");
}

/* A child that lives on with everything it inherited. */
static int do_linger(void) {
  const pid_t child = fork();
  if (child == 0) {
    while (1) pause();
  }
  return answer(CENOTE_SUCCESS, "%d", (int)child);
}

static int do_children(void) {
  const pid_t any = waitpid(-1, NULL, WNOHANG);
  return answer(CENOTE_SUCCESS, "%s", any < 0 && errno == ECHILD ? "none" : "some");
}

static int obey(char* line) {
  char* words[8];
  int count = 0;
  for (char* word = strtok(line, " \n"); word != NULL && count < 8; word = strtok(NULL, " \n"))
    words[count++] = word;
  if (count == 0) return 0;
  const char* verb = words[0];
  const int at = count > 1 ? atoi(words[1]) : 0;
  if (strcmp(verb, "connect") == 0) return do_connect(words, count);
  if (strcmp(verb, "lease") == 0) return do_lease(words, count);
  if (strcmp(verb, "adopt") == 0)
    return answer(cenote_pool_adopt(pools[at], count > 3 ? words[3] : NULL, &leases[atoi(words[2])]),
                  "adopted");
  if (strcmp(verb, "info") == 0) return do_info(words);
  if (strcmp(verb, "state") == 0) return answer(cenote_lease_state(leases[at]), "held");
  if (strcmp(verb, "release") == 0) return answer(cenote_lease_release(leases[at], 60000), "released");
  if (strcmp(verb, "open") == 0) return do_open(words);
  if (strcmp(verb, "work") == 0) return do_work(words);
  if (strcmp(verb, "bad") == 0) return do_bad(words);
  if (strcmp(verb, "threads") == 0) return do_threads(words);
  if (strcmp(verb, "fork") == 0) return do_fork(words);
  if (strcmp(verb, "forkgpus") == 0) return do_fork_gpus(words);
  if (strcmp(verb, "reduce") == 0) return do_reduce(words);
  if (strcmp(verb, "detail") == 0) return do_detail(words);
  if (strcmp(verb, "arguments") == 0) return do_arguments(words);
  if (strcmp(verb, "linger") == 0) return do_linger();
  if (strcmp(verb, "children") == 0) return do_children();
  if (strcmp(verb, "odd") == 0) { /* a daemon: it wants no child reaped, and has no standard descriptors */
    signal(SIGCHLD, SIG_IGN);
    for (int fd = 0; fd < 3; ++fd) close(fd);
    return answer(CENOTE_SUCCESS, "odd");
  }
  if (strcmp(verb, "memory") == 0) {
    uint64_t left = 0, total = 0;
    const cenote_status status = cenote_gpu_memory(sessions[at], (uint32_t)atoi(words[2]), &left, &total);
    return answer(status, "%d", left > 0 && left <= total);
  }
  if (strcmp(verb, "close") == 0) {
    cenote_gpus_close(sessions[at]);
    sessions[at] = NULL;
  } else if (strcmp(verb, "destroy") == 0) {
    cenote_lease_destroy(leases[at]);
    leases[at] = NULL;
  } else if (strcmp(verb, "disconnect") == 0) {
    cenote_pool_destroy(pools[at]);
    pools[at] = NULL;
  } else {
    return answer(CENOTE_SUCCESS, "no such command");
  }
  return answer(CENOTE_SUCCESS, "done");
}

int main(int argc, char** argv) {
  answers = argc > 1 ? stdout : fdopen(dup(3), "w");
  for (int i = 1; i < argc; ++i) obey(argv[i]);
  if (argc > 1) return 0;
  FILE* commands = fdopen(3, "r");
  char line[1024];
  while (commands != NULL && fgets(line, sizeof line, commands) != NULL) obey(line);
  return 0;
}
