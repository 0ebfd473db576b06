#include "pool/dropin/cudart/runtime.h"

#define CENOTE_RT_UNSERVED(name) \
  CENOTE_RT int name() { return cenote::cudart::say_unserved(#name); }
#include "pool/dropin/cudart/unserved.inc"
