/* The C interface of libcenote-pool: leases GPUs of a pool and works on them.
 *
 *   cenote_pool* pool;
 *   cenote_lease* lease;
 *   cenote_gpus* gpus;
 *   uint64_t buffer;
 *   cenote_lease_options two = {.size = sizeof two, .gpus = 2};
 *   cenote_pool_connect(NULL, &pool);
 *   cenote_pool_lease(pool, &two, &lease);
 *   cenote_lease_open(lease, 0, &gpus);
 *   cenote_gpu_alloc(gpus, 0, 1 << 20, &buffer);
 *   ...
 *   cenote_gpus_close(gpus);
 *   cenote_lease_release(lease, 0);
 *   cenote_lease_destroy(lease);
 *   cenote_pool_destroy(pool);
 *
 * The general rules of cenote.h hold (status codes, structs that begin with `size`, NULL and zero are
 * defaults), but the text of the last failure is cenote_pool_last_error(): the two libraries know nothing of
 * each other. Threads: every function may be called from any thread; destroy and close only when no other
 * call is running on that object. A child of fork() connects by itself: what its parent made is refused
 * there (CENOTE_INVALID_ARGUMENT), and may be closed and destroyed there, of which nobody hears. Outputs: a
 * call that fails writes none of them, so handles and addresses stay as they were; only what
 * cenote_gpu_download copies may have arrived in part.
 *
 * This library has no gRPC, protobuf or OpenSSL in it. Each pool has a helper process, `cenote session`, with
 * the certificates and keys: it asks the broker, renews, and gives back. Work on the GPUs goes from this
 * process straight to their workers. The helper is not the program's to wait for, shares no descriptor of the
 * program, and ends with the pool and its leases, or with the program, however that ends; see
 * docs/remote-cuda.md.
 */
#ifndef CENOTE_POOL_H
#define CENOTE_POOL_H

#include "cenote/cenote.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Text of the last call of this library that failed on this thread; "" if none has. */
CENOTE_API const char* cenote_pool_last_error(void);

/* ---- the pool ---- */

typedef struct cenote_pool cenote_pool;

typedef struct cenote_pool_options {
  size_t size;               /**< sizeof(cenote_pool_options) */
  const char* config_file;   /**< settings (TOML); NULL: none */
  const char* broker;        /**< host:port; NULL: setting broker.address */
  const char* tls_dir;       /**< folder with the client's certificate; NULL: setting tls.dir */
  const char* client_name;   /**< whose certificate there; NULL: setting client.name */
  uint32_t read_environment; /**< 1: CENOTE_* variables count too, below the fields above */
  const char* helper;        /**< the cenote program; NULL: setting session.helper, or the one installed with
                                this library */
} cenote_pool_options;

/** The pool of a broker. Starts the helper; nothing is sent to the broker before the first call that asks it.
 * `options` may be NULL: the environment is then read. Errors: CENOTE_NOT_FOUND (certificate, file, cenote
 * program), CENOTE_INVALID_ARGUMENT (settings), CENOTE_PEER_FAILED (the helper does not start). */
CENOTE_API cenote_status cenote_pool_connect(const cenote_pool_options* options, cenote_pool** pool);
/** Leases made from it live on. */
CENOTE_API void cenote_pool_destroy(cenote_pool* pool);

/* ---- leases ---- */

typedef struct cenote_lease cenote_lease;

typedef struct cenote_lease_options {
  size_t size;           /**< sizeof(cenote_lease_options) */
  uint32_t gpus;         /**< how many; 0: 1 */
  const char* model;     /**< NULL: any */
  uint64_t memory_bytes; /**< of each; 0: whole devices */
  uint32_t ttl_ms;       /**< how long it lives without renewal; 0: the broker's default */
  const char* note;      /**< for listings; NULL: none */
  uint32_t timeout_ms;   /**< to get the broker's answer, not to wait for GPUs; 0: 10 s */
  uint32_t wait_ms; /**< for GPUs that are leased or being cleared: ask again, a day at most; 0: do not */
} cenote_lease_options;

/** Leases GPUs. The lease renews itself, also over outages of the broker and while the program is stopped,
 * until it is released or destroyed. It is given back when the program ends without either.
 * A broker that cannot be reached is tried again until `timeout_ms` is over.
 * GPUs of a lease that has just ended are being cleared for a moment: a program that leases one after the
 * other waits for them, some seconds at least. Nobody queues: of several that wait, any may be next.
 * Errors: CENOTE_RESOURCE_EXHAUSTED (none was free, all the time; the text says what they are),
 *  CENOTE_INVALID_ARGUMENT (the pool can never grant it), CENOTE_PEER_FAILED or CENOTE_DEADLINE_EXCEEDED (no
 *  broker). */
CENOTE_API cenote_status cenote_pool_lease(cenote_pool* pool, const cenote_lease_options* options,
                                           cenote_lease** lease);
/** A lease from a file (`cenote lease --detach`); NULL: that of the setting client.lease_file, which
 *  `cenote lease -- CMD` sets. Whoever made it keeps renewing it, or nobody does. The file is not checked
 *  with the broker: the lease may be over already, which cenote_lease_state tells soon. */
CENOTE_API cenote_status cenote_pool_adopt(cenote_pool* pool, const char* lease_file, cenote_lease** lease);
/** Gives the devices back. `timeout_ms` 0: 10 s. Errors: CENOTE_NOT_FOUND (it was released before; an adopted
 * one: by anybody, or its ttl has passed). */
CENOTE_API cenote_status cenote_lease_release(cenote_lease* lease, uint32_t timeout_ms);
/** Stops renewing and waits for nobody: a lease that was not released ends with its ttl. */
CENOTE_API void cenote_lease_destroy(cenote_lease* lease);

/** CENOTE_SUCCESS while the lease is held; afterwards why not: it was released, the broker ended it, or the
 * helper is gone (CENOTE_PEER_FAILED; nobody renews it then). Waits for nobody: the helper hears of an end at
 * its next renewal, a third of the ttl after the last, and of that of an adopted lease by asking the broker
 * every 3 s; while the broker is away it stays as it was. */
CENOTE_API cenote_status cenote_lease_state(const cenote_lease* lease);
/** Its name; lives as long as the lease. */
CENOTE_API const char* cenote_lease_id(const cenote_lease* lease);
/** How many devices it has; 0 for NULL. */
CENOTE_API uint32_t cenote_lease_gpus(const cenote_lease* lease);

typedef struct cenote_gpu_info {
  size_t size; /**< sizeof(cenote_gpu_info), set by the caller */
  uint64_t memory_bytes;
  char uuid[40];
  char model[64];
  char agent[64];
} cenote_gpu_info;

/** Device `index` of the lease, from 0, as the broker granted it. Errors: CENOTE_INVALID_ARGUMENT (no such
 * device). */
CENOTE_API cenote_status cenote_lease_gpu(const cenote_lease* lease, uint32_t index, cenote_gpu_info* info);

/* ---- work ---- */

/** A session on the leased devices. Device numbers are those of the lease. Work of one device runs in order;
 * calls that return nothing from the device do not wait for it, and its errors appear at a later call, as in
 * CUDA. */
typedef struct cenote_gpus cenote_gpus;
typedef struct cenote_module cenote_module;
typedef struct cenote_kernel cenote_kernel;

/** Ends an earlier session of the lease. `timeout_ms` 0: 30 s. */
CENOTE_API cenote_status cenote_lease_open(cenote_lease* lease, uint32_t timeout_ms, cenote_gpus** gpus);
/** What was made on the devices ends with it: memory, modules, kernels. In a child of fork() nothing does. */
CENOTE_API void cenote_gpus_close(cenote_gpus* gpus);

/* Errors of all that follow: CENOTE_INVALID_ARGUMENT (NULL, no such device), and CENOTE_DRIVER_ERROR for what
 * the device or its worker answers, at this call or of earlier work: no memory, no such address or function,
 * a worker that is gone, a lease that has ended. The text says which. */

/** Free and total bytes of the leased share; either pointer may be NULL. Waits for an answer. */
CENOTE_API cenote_status cenote_gpu_memory(cenote_gpus* gpus, uint32_t device, uint64_t* free_bytes,
                                           uint64_t* total_bytes);
/** Memory of the device, by its address there: the caller's until cenote_gpu_free or the end of `gpus`. */
CENOTE_API cenote_status cenote_gpu_alloc(cenote_gpus* gpus, uint32_t device, size_t bytes,
                                          uint64_t* address);
/** Ends memory of cenote_gpu_alloc, after the device's earlier work. */
CENOTE_API cenote_status cenote_gpu_free(cenote_gpus* gpus, uint32_t device, uint64_t address);
/** Copies to the device, after its earlier work. `src` may be used again when the call returns. */
CENOTE_API cenote_status cenote_gpu_upload(cenote_gpus* gpus, uint32_t device, uint64_t dst, const void* src,
                                           size_t bytes);
/** Copies from the device, after its earlier work, and waits: the bytes are in `dst` when the call returns.
 */
CENOTE_API cenote_status cenote_gpu_download(cenote_gpus* gpus, uint32_t device, void* dst, uint64_t src,
                                             size_t bytes);

/** PTX text (with its final 0 counted in `bytes`) or a fatbin; at least one byte. Lives as long as `gpus`. */
CENOTE_API cenote_status cenote_gpu_load(cenote_gpus* gpus, uint32_t device, const void* image, size_t bytes,
                                         cenote_module** module);
/** The function `name` of the module. Lives as long as `gpus`. */
CENOTE_API cenote_status cenote_module_kernel(cenote_module* module, const char* name,
                                              cenote_kernel** kernel);
/** `arguments[i]` points at argument i, as in cuLaunchKernel; NULL there is refused. Returns when the launch
 * is on its way. */
CENOTE_API cenote_status cenote_kernel_launch(cenote_kernel* kernel, const uint32_t grid[3],
                                              const uint32_t block[3], uint32_t shared_bytes,
                                              void** arguments);
/** Waits for all work of the device. */
CENOTE_API cenote_status cenote_gpu_synchronize(cenote_gpus* gpus, uint32_t device);

/** recv[d] = op over all devices of send[d], `count` elements; one address for each device of the lease. The
 * devices exchange directly; nothing passes through this process. Ordered with each device's work; does not
 * wait, but the first call of a session does, while the devices find each other. */
CENOTE_API cenote_status cenote_gpus_allreduce(cenote_gpus* gpus, const uint64_t* send, const uint64_t* recv,
                                               size_t count, cenote_type type, cenote_op op);

#ifdef __cplusplus
}
#endif
#endif
