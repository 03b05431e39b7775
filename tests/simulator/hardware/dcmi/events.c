/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Fault events: a thread of the library follows the state file and calls the subscriber when error codes come and go, as the
 * driver's does. No history: what stood before the subscription is not told.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "dcmi_interface.h"
#include "state.h"

#define MAX_CHIPS 256
#define MAX_CODES 128
#define LOOK_NS 20000000L /* between two looks where no inotify instance is left */

struct standing {
    unsigned int codes[MAX_CODES];
    int count, once; /* once: highest serial number of a one-off event that was told */
};

static dcmi_fault_event_callback subscriber;
static struct standing known[MAX_CHIPS];
static int serial;

static int has(const struct standing *one, unsigned int code)
{
    for (int i = 0; i < one->count; i++)
        if (one->codes[i] == code) return 1;
    return 0;
}

static void add(struct dcmi_event *list, int *length, int chip, unsigned int code, int assertion, double severity)
{
    struct dcmi_event *event = &list[(*length)++];
    memset(event, 0, sizeof *event);
    event->event_t.dms_event.event_id = code;
    event->event_t.dms_event.deviceid = (unsigned short)chip; /* the logic id */
    event->event_t.dms_event.severity = (unsigned char)severity;
    event->event_t.dms_event.assertion = (unsigned char)assertion;
    event->event_t.dms_event.event_serial_num = event->event_t.dms_event.notify_serial_num = ++serial;
    event->event_t.dms_event.alarm_raised_time = (unsigned long long)time(NULL) * 1000;
    snprintf(event->event_t.dms_event.event_name, sizeof event->event_t.dms_event.event_name, "simulated fault %08X", code);
}

/* What changed on one chip since the last time, at most 2 * MAX_CODES events and the one-off ones. */
static int compare(const cJSON *chip, int index, struct dcmi_event *list, int room)
{
    struct standing now = {.count = 0, .once = known[index].once};
    int length = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(chip, "error_codes"))
    {
        if (now.count == MAX_CODES || length == room) break;
        unsigned int code = now.codes[now.count++] = hex_or_number(item);
        if (!has(&known[index], code)) add(list, &length, index, code, ASSERTION_OCCURRENCE, num(chip, "health", 0));
    }
    for (int i = 0; i < known[index].count && length < room; i++)
        if (!has(&now, known[index].codes[i])) add(list, &length, index, known[index].codes[i], ASSERTION_RECOVERY, 0);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(chip, "once"))
    {
        int number = (int)num(item, "serial", 0);
        if (number <= known[index].once || length == room) continue;
        if (number > now.once) now.once = number;
        unsigned int code = hex_or_number(cJSON_GetObjectItemCaseSensitive(item, "code"));
        add(list, &length, index, code, ASSERTION_ONCE, num(item, "severity", 0));
    }
    known[index] = now;
    return length;
}

/* Looks at the state once; tell: call the subscriber, with nothing locked. */
static void look(int tell)
{
    static struct dcmi_event events[1024];
    struct call call;
    int length = 0, index = 0;
    if (sim_read(&call) != 0) return;
    const cJSON *chip;
    cJSON_ArrayForEach(chip, call.chips)
    {
        if (index == MAX_CHIPS) break;
        length += compare(chip, index++, events + length, (int)(sizeof events / sizeof *events) - length);
    }
    sim_leave();
    for (int i = 0; tell && i < length; i++) subscriber(&events[i]);
}

static int watch_folder(void)
{
    char *folder = strdup(sim_state_path()), *slash = strrchr(folder, '/');
    int descriptor = inotify_init1(IN_CLOEXEC);
    if (slash != NULL) *slash = '\0';
    if (descriptor >= 0 && inotify_add_watch(descriptor, slash != NULL ? folder : ".", IN_CLOSE_WRITE | IN_MOVED_TO) < 0) {
        close(descriptor);
        descriptor = -1;
    }
    free(folder);
    return descriptor;
}

/* Waits until the state file may have changed. */
static void wait_for_change(int descriptor)
{
    _Alignas(struct inotify_event) char buffer[4096];
    const char *slash = strrchr(sim_state_path(), '/'), *name = slash != NULL ? slash + 1 : sim_state_path();
    if (descriptor < 0) {
        struct timespec pause = {0, LOOK_NS};
        nanosleep(&pause, NULL);
        return;
    }
    for (;;) {
        ssize_t length = read(descriptor, buffer, sizeof buffer);
        for (ssize_t at = 0; at < length; at += (ssize_t)sizeof(struct inotify_event) + ((struct inotify_event *)(buffer + at))->len)
            if (((struct inotify_event *)(buffer + at))->len > 0 && strcmp(((struct inotify_event *)(buffer + at))->name, name) == 0) return;
    }
}

static void *follow(void *descriptor)
{
    for (;;) {
        look(1);
        wait_for_change((int)(long)descriptor);
    }
    return NULL;
}

int sim_subscribe(dcmi_fault_event_callback handler)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    pthread_mutex_lock(&once);
    int code = subscriber != NULL ? DCMI_ERR_INNER : DCMI_OK; /* the manual allows one call in a process */
    if (code == DCMI_OK) {
        long descriptor = watch_folder();
        subscriber = handler;
        look(0);
        code = pthread_create(&thread, NULL, follow, (void *)descriptor) == 0 ? DCMI_OK : DCMI_ERR_INNER;
        if (code == DCMI_OK) pthread_detach(thread);
    }
    pthread_mutex_unlock(&once);
    return code;
}

EXPORT int dcmi_subscribe_fault_event(int card_id, int device_id, struct dcmi_event_filter filter, dcmi_fault_event_callback handler)
{
    (void)filter; /* every event, as filter_flag 0 asks for */
    NEED(handler != NULL && card_id == -1 && device_id == -1);
    ENTER(NO_CHIP, 0);
    sim_leave();
    (void)call;
    return sim_subscribe(handler);
}
