/* The machine that runs the program, as a device of the backends that compute on its processor. */
#ifndef NIB_MACHINE_H
#define NIB_MACHINE_H

#include "nibble.h"

/* There is one, i = 0; NIB_E_ARGUMENT for others. */
enum nib_status nib_machine_device(int32_t i, struct nib_device_info *out, struct nib_error *err);

#endif
