/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Reads the state file for libdcmi.so. The file is looked at in every call; it is parsed anew whenever its identity
 * changed, and also while its last change is too fresh for the clock tick of the file system to tell two writes apart.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "dcmi_interface.h"

#define DEFAULT_STATE "/var/lib/npu-sim/state.json"
#define FRESH_NS 50000000LL      /* longer than any kernel tick (10 ms at HZ=100) */
#define RETRY_NS 5000000L
#define RETRIES 100              /* half a second for somebody who is still writing */
#define HANG_POLL_NS 50000000L

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cJSON *root;
static struct stat seen;
static int initialised;

static void nap(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

const char *sim_state_path(void)
{
    const char *path = getenv("NPU_SIM_STATE");
    return path != NULL && *path != '\0' ? path : DEFAULT_STATE;
}

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static int is_fresh(const struct stat *st)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    long long age = (now.tv_sec - st->st_ctim.tv_sec) * 1000000000LL + (now.tv_nsec - st->st_ctim.tv_nsec);
    return age < FRESH_NS;
}

static cJSON *parse_file(const char *path, struct stat *st)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    cJSON *parsed = NULL;
    char *data = NULL;
    if (fstat(fd, st) == 0 && (data = malloc((size_t)st->st_size + 1)) != NULL) {
        ssize_t have = 0, got;
        while (have < st->st_size && (got = read(fd, data + have, (size_t)(st->st_size - have))) > 0) have += got;
        data[have] = '\0';
        parsed = cJSON_Parse(data);
    }
    free(data);
    close(fd);
    if (parsed != NULL && !cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(parsed, "chips"))) {
        cJSON_Delete(parsed);
        parsed = NULL;
    }
    return parsed;
}

/* With the lock held. Returns 0 or DCMI_ERR_INNER. */
static int refresh(void)
{
    const char *path = sim_state_path();
    struct stat st;
    if (root != NULL && stat(path, &st) == 0 && same_file(&st, &seen) && !is_fresh(&st)) return 0;
    for (int i = 0; i < RETRIES; i++) {
        cJSON *parsed = parse_file(path, &st);
        if (parsed != NULL) {
            cJSON_Delete(root);
            root = parsed;
            seen = st;
            return 0;
        }
        if (access(path, R_OK) != 0 && errno != ENOENT) break;
        if (i > 4 && access(path, F_OK) != 0) break;  /* really absent, not between two steps of a writer */
        nap(RETRY_NS);
    }
    return DCMI_ERR_INNER;
}

double num(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

const char *text(const cJSON *object, const char *key, const char *otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : otherwise;
}

/* cJSON keeps integers above INT_MAX only in its double; error codes such as 0x80E3A203 need that. */
unsigned int hex_or_number(const cJSON *item)
{
    if (cJSON_IsString(item)) return (unsigned int)strtoul(item->valuestring, NULL, 16);
    return cJSON_IsNumber(item) ? (unsigned int)(long long)item->valuedouble : 0;
}

int copy_text(char *to, size_t size, const char *from)
{
    if (to == NULL || size <= strlen(from)) return DCMI_ERR_INVALID_PARAMETER;
    memcpy(to, from, strlen(from) + 1);
    return DCMI_OK;
}

int sim_present(const cJSON *chip)
{
    return !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(chip, "present"));
}

const cJSON *sim_find(const cJSON *chips, int card, int device)
{
    const cJSON *chip;
    cJSON_ArrayForEach(chip, chips)
    {
        if ((int)num(chip, "card_id", -1) == card && (int)num(chip, "device_id", 0) == device) return chip;
    }
    return NULL;
}

int sim_card_exists(const cJSON *chips, int card)
{
    const cJSON *chip;
    cJSON_ArrayForEach(chip, chips)
    {
        if ((int)num(chip, "card_id", -1) == card && sim_present(chip)) return 1;
    }
    return 0;
}

enum { HANG = 1, CRASH = 2 };

/* dcmi_get_x and dcmiv2_get_x are both "get_x" to the state. */
static const char *bare(const char *function)
{
    return strchr(function, '_') + 1;
}

/* "fail", "hang", "crash", or an object with function names (with or without "dcmi_") as keys; HANG, CRASH, else 0 or a code. */
static int asked_for(const cJSON *holder, const char *function)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(holder, "dcmi");
    if (cJSON_IsObject(item)) {
        const cJSON *one = cJSON_GetObjectItemCaseSensitive(item, function);
        item = one != NULL ? one : cJSON_GetObjectItemCaseSensitive(item, bare(function));
    }
    if (cJSON_IsNumber(item)) return (int)item->valuedouble;
    if (!cJSON_IsString(item)) return 0;
    if (strcmp(item->valuestring, "hang") == 0) return HANG;
    if (strcmp(item->valuestring, "crash") == 0) return CRASH;
    return strcmp(item->valuestring, "fail") == 0 ? DCMI_ERR_INNER : 0;
}

/* The product's own list, apart from what a test asks for: calls that these chips do not have. */
static int unsupported(const char *function)
{
    const cJSON *name;
    cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(root, "unsupported"))
    {
        if (cJSON_IsString(name) && strcmp(name->valuestring, bare(function)) == 0) return 1;
    }
    return 0;
}

int sim_second_api(const cJSON *state)
{
    return strcmp(text(state, "api", "v1"), "v2") == 0;
}

static int driver_answers(void)
{
    const cJSON *kernel = cJSON_GetObjectItemCaseSensitive(root, "kernel");
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(kernel, "driver_loaded")) &&
           !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(kernel, "npu_nodes_appear")) &&
           !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(kernel, "driver_dead"));
}

int sim_mark_initialised(void)
{
    initialised = 1;
    return DCMI_OK;
}

int sim_enter(const char *function, int card, int device, struct call *call)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        int code = refresh();
        const cJSON *behaviour = cJSON_GetObjectItemCaseSensitive(root, "behaviour");
        call->root = root;
        call->chips = cJSON_GetObjectItemCaseSensitive(root, "chips");
        call->chip = NULL;
        if (code == 0) code = asked_for(behaviour, function);
        if (code == 0 && !initialised && strcmp(bare(function), "init") != 0) code = DCMI_ERR_INNER;
        if (code == 0 && !driver_answers()) code = DCMI_ERR_INNER;
        if (code == 0 && unsupported(function)) code = DCMI_ERR_NOT_SUPPORT;
        if (code == 0 && card != NO_CHIP) {
            call->chip = sim_find(call->chips, card, device);
            if (call->chip != NULL) code = asked_for(call->chip, function);
            if (code == 0 && (call->chip == NULL || !sim_present(call->chip))) {
                code = card < 0 || device < 0 ? DCMI_ERR_INVALID_PARAMETER : DCMI_ERR_DEVICE_NOT_EXIST;
            }
        }
        if (code == 0) return 0;
        if (code == CRASH) abort();
        if (code != HANG) {
            pthread_mutex_unlock(&lock);
            return code;
        }
        /* A hang ends when the state says so; others may call meanwhile. */
        pthread_mutex_unlock(&lock);
        nap(HANG_POLL_NS);
        pthread_mutex_lock(&lock);
    }
}

int sim_read(struct call *call)
{
    pthread_mutex_lock(&lock);
    int code = refresh();
    if (code == 0 && !driver_answers()) code = DCMI_ERR_INNER;
    if (code != 0) {
        pthread_mutex_unlock(&lock);
        return code;
    }
    call->root = root;
    call->chips = cJSON_GetObjectItemCaseSensitive(root, "chips");
    call->chip = NULL;
    return 0;
}

void sim_leave(void)
{
    pthread_mutex_unlock(&lock);
}
