/* For programs that run the simulator's tests on a card: its functions (ptxsim/ptxsim.h) over memory that card and host both
 * see, every byte 0xff until something is written. px_run() is theirs. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include "ptxsim/ptxsim.h"

struct px_machine {
    void *taken[64];
    int   n;
    char  error[300];
};

/* Memory of cudaMallocManaged() that is to be freed with the next machine that is; false: there is no room. */
bool stand_in_keep(void *managed);

#endif
