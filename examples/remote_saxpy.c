/* Leases a GPU of the pool, computes y = 2 x + y there, and gives it back. Wants a broker and an agent, and
 * their names in the environment (CENOTE_BROKER_ADDRESS, CENOTE_TLS_DIR) or in a settings file:
 *   remote_saxpy [SETTINGS.toml] */
#include <cenote/pool.h>
#include <stdio.h>

#include "saxpy.ptx.h"

enum { COUNT = 1000 };

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, cenote_pool_last_error());
  return 1;
}

static int saxpy(cenote_gpus* gpus) {
  float x[COUNT], y[COUNT];
  for (int i = 0; i < COUNT; ++i) x[i] = (float)i, y[i] = 1;
  uint64_t x_there, y_there;
  if (cenote_gpu_alloc(gpus, 0, sizeof x, &x_there)) return failed("allocate");
  if (cenote_gpu_alloc(gpus, 0, sizeof y, &y_there)) return failed("allocate");
  if (cenote_gpu_upload(gpus, 0, x_there, x, sizeof x)) return failed("upload");
  if (cenote_gpu_upload(gpus, 0, y_there, y, sizeof y)) return failed("upload");

  cenote_module* module;
  cenote_kernel* kernel;
  if (cenote_gpu_load(gpus, 0, saxpy_ptx, sizeof saxpy_ptx, &module)) return failed("load the module");
  if (cenote_module_kernel(module, "saxpy", &kernel)) return failed("find the kernel");
  float a = 2;
  uint32_t count = COUNT;
  void* arguments[] = {&a, &x_there, &y_there, &count};
  const uint32_t block[3] = {128, 1, 1}, grid[3] = {(COUNT + 127) / 128, 1, 1};
  if (cenote_kernel_launch(kernel, grid, block, 0, arguments)) return failed("launch");
  if (cenote_gpu_download(gpus, 0, y, y_there, sizeof y)) return failed("download");

  for (int i = 0; i < COUNT; ++i) {
    if (y[i] != 2 * (float)i + 1) return fprintf(stderr, "y[%d] is %g\n", i, y[i]), 1;
  }
  printf("%d elements of 2 x + y are right\n", COUNT);
  return 0;
}

int main(int argc, char** argv) {
  cenote_pool_options options = {.size = sizeof options, .read_environment = 1};
  if (argc > 1) options.config_file = argv[1];
  cenote_pool* pool;
  cenote_lease* lease;
  cenote_gpus* gpus;
  if (cenote_pool_connect(&options, &pool)) return failed("connect to the pool");
  cenote_lease_options one = {.size = sizeof one, .gpus = 1, .note = "remote_saxpy", .wait_ms = 60000};
  if (cenote_pool_lease(pool, &one, &lease)) return failed("lease a GPU");
  cenote_gpu_info info = {.size = sizeof info};
  if (cenote_lease_gpu(lease, 0, &info)) return failed("look at the GPU");
  printf("leased a %s of agent %s: lease %s\n", info.model, info.agent, cenote_lease_id(lease));

  if (cenote_lease_open(lease, 0, &gpus)) return failed("open the lease");
  const int wrong = saxpy(gpus);
  cenote_gpus_close(gpus);

  if (cenote_lease_release(lease, 0)) return failed("give the GPU back");
  printf("gave it back\n");
  cenote_lease_destroy(lease);
  cenote_pool_destroy(pool);
  return wrong;
}
