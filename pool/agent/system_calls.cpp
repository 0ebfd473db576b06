// The list: what the emulated driver, the transports and the collectives call (traced), and what NVIDIA's
// driver, libibverbs' providers and UCX call beyond it according to their sources and to the profile that
// container engines run them under by default. It is a part of that profile: nothing here starts programs,
// makes processes, changes users, mounts, or looks into other processes.
#include "pool/agent/system_calls.h"

#include <linux/sched.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace cenote::pool::agent {
namespace {

#define CALL(name) SCMP_SYS(name)

constexpr int kAllowed[] = {
    // memory
    CALL(brk), CALL(mmap), CALL(munmap), CALL(mremap), CALL(mprotect), CALL(madvise), CALL(mincore),
    CALL(msync), CALL(mlock), CALL(mlock2), CALL(munlock), CALL(mlockall), CALL(munlockall), CALL(membarrier),
    CALL(memfd_create), CALL(mbind), CALL(get_mempolicy), CALL(set_mempolicy), CALL(pkey_alloc),
    CALL(pkey_free), CALL(pkey_mprotect), CALL(shmget), CALL(shmat), CALL(shmdt), CALL(shmctl),
    // threads; clone below
    CALL(exit), CALL(exit_group), CALL(futex), CALL(futex_waitv), CALL(set_robust_list),
    CALL(get_robust_list), CALL(set_tid_address), CALL(rseq), CALL(arch_prctl), CALL(sched_yield),
    CALL(sched_getaffinity), CALL(sched_setaffinity), CALL(sched_getparam), CALL(sched_setparam),
    CALL(sched_getscheduler), CALL(sched_setscheduler), CALL(sched_get_priority_max),
    CALL(sched_get_priority_min), CALL(sched_getattr), CALL(sched_setattr), CALL(getcpu), CALL(getpriority),
    CALL(setpriority), CALL(wait4), CALL(waitid),
    // who it is
    CALL(gettid), CALL(getpid), CALL(getppid), CALL(getpgrp), CALL(getpgid), CALL(getsid), CALL(getuid),
    CALL(geteuid), CALL(getgid), CALL(getegid), CALL(getresuid), CALL(getresgid), CALL(getgroups),
    CALL(capget), CALL(uname), CALL(sysinfo), CALL(getrlimit), CALL(setrlimit), CALL(getrusage),
    CALL(getrandom),
    // signals; kill and tgkill below
    CALL(rt_sigaction), CALL(rt_sigprocmask), CALL(rt_sigreturn), CALL(rt_sigsuspend), CALL(rt_sigtimedwait),
    CALL(rt_sigpending), CALL(sigaltstack), CALL(restart_syscall), CALL(pause), CALL(signalfd),
    CALL(signalfd4),
    // time
    CALL(clock_gettime), CALL(clock_getres), CALL(clock_nanosleep), CALL(nanosleep), CALL(gettimeofday),
    CALL(time), CALL(times), CALL(alarm), CALL(getitimer), CALL(setitimer), CALL(timer_create),
    CALL(timer_settime), CALL(timer_gettime), CALL(timer_getoverrun), CALL(timer_delete),
    CALL(timerfd_create), CALL(timerfd_settime), CALL(timerfd_gettime),
    // files: which ones, the user of the worker decides
    CALL(read), CALL(write), CALL(readv), CALL(writev), CALL(pread64), CALL(pwrite64), CALL(preadv),
    CALL(pwritev), CALL(preadv2), CALL(pwritev2), CALL(open), CALL(openat), CALL(openat2), CALL(creat),
    CALL(close), CALL(close_range), CALL(dup), CALL(dup2), CALL(dup3), CALL(fcntl), CALL(ioctl), CALL(lseek),
    CALL(stat), CALL(fstat), CALL(lstat), CALL(newfstatat), CALL(statx), CALL(statfs), CALL(fstatfs),
    CALL(access), CALL(faccessat), CALL(faccessat2), CALL(readlink), CALL(readlinkat), CALL(getdents),
    CALL(getdents64), CALL(getcwd), CALL(chdir), CALL(fchdir), CALL(mkdir), CALL(mkdirat), CALL(rmdir),
    CALL(unlink), CALL(unlinkat), CALL(rename), CALL(renameat), CALL(renameat2), CALL(truncate),
    CALL(ftruncate), CALL(fallocate), CALL(fadvise64), CALL(fsync), CALL(fdatasync), CALL(flock), CALL(umask),
    CALL(chmod), CALL(fchmod), CALL(fchmodat), CALL(utimensat), CALL(copy_file_range), CALL(sendfile),
    CALL(splice), CALL(inotify_init1), CALL(inotify_add_watch), CALL(inotify_rm_watch),
    // waiting, also for the end of a peer's process (a transport watches it)
    CALL(pidfd_open), CALL(poll), CALL(ppoll), CALL(select), CALL(pselect6), CALL(epoll_create),
    CALL(epoll_create1), CALL(epoll_ctl), CALL(epoll_wait), CALL(epoll_pwait), CALL(epoll_pwait2),
    CALL(eventfd), CALL(eventfd2), CALL(pipe), CALL(pipe2),
    // sockets; socket below
    CALL(bind), CALL(listen), CALL(accept), CALL(accept4), CALL(connect), CALL(getsockname),
    CALL(getpeername), CALL(getsockopt), CALL(setsockopt), CALL(shutdown), CALL(sendto), CALL(recvfrom),
    CALL(sendmsg), CALL(recvmsg), CALL(sendmmsg), CALL(recvmmsg), CALL(socketpair)};

constexpr int kRefused[] = {
    // other programs, other processes
    CALL(execve), CALL(execveat), CALL(fork), CALL(vfork), CALL(ptrace), CALL(process_vm_readv),
    CALL(process_vm_writev), CALL(process_madvise), CALL(kcmp), CALL(pidfd_getfd), CALL(pidfd_send_signal),
    CALL(tkill), CALL(rt_sigqueueinfo), CALL(rt_tgsigqueueinfo), CALL(move_pages), CALL(migrate_pages),
    CALL(setpgid), CALL(setsid),
    // other users
    CALL(setuid), CALL(setgid), CALL(setreuid), CALL(setregid), CALL(setresuid), CALL(setresgid),
    CALL(setfsuid), CALL(setfsgid), CALL(setgroups), CALL(capset), CALL(chown), CALL(fchown), CALL(lchown),
    CALL(fchownat),
    // another view of the machine
    CALL(unshare), CALL(setns), CALL(mount), CALL(umount2), CALL(pivot_root), CALL(chroot), CALL(move_mount),
    CALL(open_tree), CALL(fsopen), CALL(fsconfig), CALL(fsmount), CALL(fspick), CALL(mount_setattr),
    CALL(open_by_handle_at), CALL(name_to_handle_at), CALL(mknod), CALL(mknodat), CALL(link), CALL(linkat),
    CALL(symlink), CALL(symlinkat),
    // the kernel
    CALL(bpf), CALL(perf_event_open), CALL(userfaultfd), CALL(io_uring_setup), CALL(io_uring_enter),
    CALL(io_uring_register), CALL(keyctl), CALL(add_key), CALL(request_key), CALL(init_module),
    CALL(finit_module), CALL(delete_module), CALL(kexec_load), CALL(kexec_file_load), CALL(reboot),
    CALL(swapon), CALL(swapoff), CALL(sethostname), CALL(setdomainname), CALL(settimeofday),
    CALL(clock_settime), CALL(adjtimex), CALL(clock_adjtime), CALL(acct), CALL(quotactl), CALL(syslog),
    CALL(iopl), CALL(ioperm), CALL(modify_ldt), CALL(personality), CALL(vhangup)};

/// Of the others none is for a worker: PR_SET_DUMPABLE, PR_SET_PTRACER, PR_SET_MM, PR_CAP_AMBIENT and the
/// like.
constexpr int kPrctls[] = {PR_SET_NAME,        PR_GET_NAME,       PR_GET_DUMPABLE,     PR_CAPBSET_READ,
                           PR_SET_TIMERSLACK,  PR_GET_TIMERSLACK, PR_GET_NO_NEW_PRIVS, PR_SET_NO_NEW_PRIVS,
                           PR_GET_SECCOMP,     PR_SET_VMA,        PR_GET_PDEATHSIG,    PR_GET_TID_ADDRESS,
                           PR_SET_THP_DISABLE, PR_GET_THP_DISABLE};

constexpr int kFamilies[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

#undef CALL

/// Adds rules to one filter; the first failure stays.
class Rules {
 public:
  Rules() : context_(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), &seccomp_release) {
    if (!context_) error_ = ENOMEM;
  }
  void allow(int call) { add(SCMP_ACT_ALLOW, call, nullptr, 0); }
  void refuse(int call) { add(SCMP_ACT_ERRNO(EPERM), call, nullptr, 0); }
  void allow(int call, scmp_arg_cmp argument) { add(SCMP_ACT_ALLOW, call, &argument, 1); }
  void set(scmp_filter_attr attribute, std::uint32_t value) {
    if (error_ == 0) error_ = -seccomp_attr_set(context_.get(), attribute, value);
  }
  /// 0, or the number of the error.
  int load() { return error_ != 0 ? error_ : -seccomp_load(context_.get()); }

 private:
  void add(std::uint32_t action, int call, const scmp_arg_cmp* arguments, unsigned count) {
    if (error_ == 0) error_ = -seccomp_rule_add_array(context_.get(), action, call, count, arguments);
  }
  std::unique_ptr<void, decltype(&seccomp_release)> context_;
  int error_ = 0;
};

scmp_arg_cmp first_is(scmp_datum_t value) { return {0, SCMP_CMP_EQ, value, 0}; }

void some_arguments(Rules& rules) {
  // Threads, not processes, and no namespaces. What clone3 asks lies in memory that a filter cannot read:
  // ENOSYS, and the C library comes back with clone.
  constexpr std::uint64_t spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                                   CLONE_NEWUTS | CLONE_NEWCGROUP;
  rules.allow(SCMP_SYS(clone), scmp_arg_cmp{0, SCMP_CMP_MASKED_EQ, CLONE_THREAD | spaces, CLONE_THREAD});
  const auto self = static_cast<scmp_datum_t>(::getpid());
  rules.allow(SCMP_SYS(kill), first_is(self));
  rules.allow(SCMP_SYS(tgkill), first_is(self));
  rules.allow(SCMP_SYS(prlimit64), first_is(0));
  rules.allow(SCMP_SYS(prlimit64), first_is(self));
  for (const int option : kPrctls) rules.allow(SCMP_SYS(prctl), first_is(static_cast<scmp_datum_t>(option)));
  for (const int family : kFamilies)
    rules.allow(SCMP_SYS(socket), first_is(static_cast<scmp_datum_t>(family)));
}

}  // namespace

std::size_t allowed_system_calls() { return std::size(kAllowed) + 6; }

Result<void> filter_system_calls() {
  Rules rules;
  rules.set(SCMP_FLTATR_CTL_TSYNC, 1);
  rules.set(SCMP_FLTATR_CTL_OPTIMIZE,
            2);  // a tree: a call in the middle of the list costs as little as the first
  for (const int call : kAllowed) rules.allow(call);
  for (const int call : kRefused) rules.refuse(call);
  some_arguments(rules);
  if (const int error = rules.load(); error != 0)
    return fail(system_error("filter the worker's system calls", error));
  return {};
}

}  // namespace cenote::pool::agent
