/* SPDX-License-Identifier: GPL-3.0-or-later */
#ifndef NPU_SIM_STATE_H
#define NPU_SIM_STATE_H

#include <cjson/cJSON.h>

#define EXPORT __attribute__((visibility("default")))

/* What one DCMI call works on. Valid between sim_enter() == 0 and sim_leave(); the state is locked meanwhile. */
struct call {
    const cJSON *root;
    const cJSON *chips;
    const cJSON *chip;  /* NULL unless a chip was asked for */
};

enum { NO_CHIP = -1 };

/* Starts a call: loads the state, plays the behaviour asked for (fail, hang, a code), checks driver and chip.
 * Returns 0 with the state locked, or the code to hand to the caller with nothing locked. */
int sim_enter(const char *function, int card, int device, struct call *call);
void sim_leave(void);

/* The state without any behaviour, for the thread that tells of changes: 0 with the state locked (sim_leave), else a code. */
int sim_read(struct call *call);
const char *sim_state_path(void);

/* The frame of every exported function: check arguments, enter, work on `call`, leave. */
#define NEED(condition) \
    if (!(condition)) return DCMI_ERR_INVALID_PARAMETER
#define ENTER(card, device)                                         \
    struct call call;                                               \
    int code = sim_enter(__func__, (card), (device), &call);        \
    if (code != 0) return code
#define LEAVE(result)       \
    do {                    \
        int out = (result); \
        sim_leave();        \
        return out;         \
    } while (0)

int sim_mark_initialised(void);
int sim_second_api(const cJSON *root); /* the library of Ascend 950: dcmiv2_ only */

const cJSON *sim_find(const cJSON *chips, int card, int device);
int sim_present(const cJSON *chip);
int sim_card_exists(const cJSON *chips, int card);

double num(const cJSON *object, const char *key, double otherwise);
const char *text(const cJSON *object, const char *key, const char *otherwise);
int copy_text(char *to, size_t size, const char *from);
unsigned int hex_or_number(const cJSON *item);

#endif
