// SPDX-License-Identifier: Apache-2.0
#include "base/thread_name.h"

#include <pthread.h>

namespace spillway {

void name_this_thread(const char* name) {
  // A name that the system does not take is not worth an error.
  static_cast<void>(pthread_setname_np(pthread_self(), name));
}

}  // namespace spillway
