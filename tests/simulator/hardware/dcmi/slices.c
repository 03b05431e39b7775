/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * dcmi_get_device_info: virtual devices and AI cores of a chip. Other queries of that function are not simulated.
 */
#include <string.h>

#include "dcmi_interface.h"
#include "state.h"

static int fill_totals(const struct call *call, struct dcmi_soc_total_resource *totals)
{
    const cJSON *slice;
    memset(totals, 0, sizeof *totals);
    cJSON_ArrayForEach(slice, cJSON_GetObjectItemCaseSensitive(call->chip, "slices"))
    {
        if (totals->vdev_num == MAX_VDEVS) break;
        totals->vdev_id[totals->vdev_num++] = (unsigned int)num(slice, "vdev_id", 0);
    }
    totals->computing.aic = (float)num(call->chip, "aicore_total", num(call->chip, "aicore_count", 20));
    return DCMI_OK;
}

static int fill_one(const struct call *call, struct dcmi_vdev_query_stru *query)
{
    const cJSON *slice;
    cJSON_ArrayForEach(slice, cJSON_GetObjectItemCaseSensitive(call->chip, "slices"))
    {
        if ((unsigned int)num(slice, "vdev_id", 0) != query->vdev_id) continue;
        memset(&query->query_info, 0, sizeof query->query_info);
        return copy_text(query->query_info.name, sizeof query->query_info.name, text(slice, "template", ""));
    }
    return DCMI_ERR_INVALID_PARAMETER;
}

EXPORT int dcmi_get_device_info(int card_id, int device_id, int main_cmd, unsigned int sub_cmd, void *buf, unsigned int *size)
{
    NEED(buf != NULL && size != NULL);
    ENTER(card_id, device_id);
    if (main_cmd != MAIN_VDEV_MNG || sub_cmd > VDEV_TOTALS) LEAVE(DCMI_ERR_NOT_SUPPORT);
    size_t needed = sub_cmd == VDEV_TOTALS ? sizeof(struct dcmi_soc_total_resource) : sizeof(struct dcmi_vdev_query_stru);
    if (*size < needed) LEAVE(DCMI_ERR_INVALID_PARAMETER);
    *size = (unsigned int)needed;
    LEAVE(sub_cmd == VDEV_TOTALS ? fill_totals(&call, buf) : fill_one(&call, buf));
}
