/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The second face of DCMI, which Ascend 950 has alone: one dev_id, the logic id, in place of card and device. Behaviour is asked for
 * under the first API's names, which do the work here.
 */
#include "dcmi_interface.h"
#include "state.h"

int sim_subscribe(dcmi_fault_event_callback handler);

/* Finds card and device, then calls the function of the first API. */
#define FORWARD(dev_id, function, ...)                                                  \
    int card, device, code = find(__func__, (dev_id), &card, &device);                  \
    return code != 0 ? code : function(card, device, __VA_ARGS__)

static int find(const char *function, int dev_id, int *card, int *device)
{
    struct call call;
    int code = sim_enter(function, NO_CHIP, 0, &call);
    if (code != 0) return code;
    const cJSON *chip = dev_id < 0 ? NULL : cJSON_GetArrayItem(call.chips, dev_id);
    *card = (int)num(chip, "card_id", 0);
    *device = (int)num(chip, "device_id", 0);
    LEAVE(chip == NULL ? DCMI_ERR_INVALID_DEVICE_ID : DCMI_OK);
}

EXPORT int dcmiv2_init(void)
{
    ENTER(NO_CHIP, 0);
    LEAVE(sim_second_api(call.root) ? sim_mark_initialised() : DCMI_ERR_NOT_SUPPORT);
}

EXPORT int dcmiv2_get_dcmi_version(char *dcmi_ver, unsigned int len)
{
    return dcmi_get_dcmi_version(dcmi_ver, len);
}

EXPORT int dcmiv2_get_driver_version(char *driver_ver, unsigned int len)
{
    return dcmi_get_driver_version(driver_ver, len);
}

EXPORT int dcmiv2_get_device_list(int *list, int *count, int list_len)
{
    NEED(list != NULL && count != NULL && list_len > 0);
    ENTER(NO_CHIP, 0);
    int index = 0;
    const cJSON *chip;
    *count = 0;
    cJSON_ArrayForEach(chip, call.chips)
    {
        if (sim_present(chip) && *count < list_len) list[(*count)++] = index;
        index++;
    }
    LEAVE(DCMI_OK);
}

EXPORT int dcmiv2_get_all_device_count(int *count)
{
    return dcmi_get_all_device_count(count);
}

EXPORT int dcmiv2_get_chip_phy_id_by_dev_id(int dev_id, unsigned int *phy_id)
{
    return dcmi_get_device_phyid_from_logicid((unsigned int)dev_id, phy_id);
}

EXPORT int dcmiv2_get_dev_id_by_chip_phy_id(unsigned int phy_id, unsigned int *dev_id)
{
    return dcmi_get_device_logicid_from_phyid(phy_id, dev_id);
}

EXPORT int dcmiv2_get_device_type(int dev_id, enum dcmi_unit_type *type)
{
    FORWARD(dev_id, dcmi_get_device_type, type);
}

EXPORT int dcmiv2_get_device_chip_info(int dev_id, struct dcmi_chip_info_v2 *info)
{
    FORWARD(dev_id, dcmi_get_device_chip_info_v2, info);
}

EXPORT int dcmiv2_get_device_pcie_info(int dev_id, struct dcmi_pcie_info_all *info)
{
    FORWARD(dev_id, dcmi_get_device_pcie_info_v2, info);
}

EXPORT int dcmiv2_get_device_die_id(int dev_id, enum dcmi_die_type type, struct dcmi_die_id *die)
{
    FORWARD(dev_id, dcmi_get_device_die_v2, type, die);
}

EXPORT int dcmiv2_get_device_health(int dev_id, unsigned int *health)
{
    FORWARD(dev_id, dcmi_get_device_health, health);
}

EXPORT int dcmiv2_get_device_error_code_list(int dev_id, int *count, unsigned int *list, unsigned int list_len)
{
    FORWARD(dev_id, dcmi_get_device_errorcode_v2, count, list, list_len);
}

EXPORT int dcmiv2_get_device_power_info(int dev_id, int *power)
{
    FORWARD(dev_id, dcmi_get_device_power_info, power);
}

EXPORT int dcmiv2_get_device_temperature(int dev_id, int *temperature)
{
    FORWARD(dev_id, dcmi_get_device_temperature, temperature);
}

EXPORT int dcmiv2_get_device_sensor_info(int dev_id, enum dcmi_manager_sensor_id id, union dcmi_sensor_info *info)
{
    FORWARD(dev_id, dcmi_get_device_sensor_info, id, info);
}

EXPORT int dcmiv2_get_device_utilization_rate(int dev_id, int input_type, unsigned int *rate)
{
    FORWARD(dev_id, dcmi_get_device_utilization_rate, input_type, rate);
}

EXPORT int dcmiv2_get_device_hbm_info(int dev_id, struct dcmi_hbm_info *info)
{
    FORWARD(dev_id, dcmi_get_device_hbm_info, info);
}

EXPORT int dcmiv2_get_device_ecc_info(int dev_id, enum dcmi_device_type type, struct dcmi_ecc_info *info)
{
    FORWARD(dev_id, dcmi_get_device_ecc_info, type, info);
}

EXPORT int dcmiv2_get_device_boot_status(int dev_id, enum dcmi_boot_status *status)
{
    FORWARD(dev_id, dcmi_get_device_boot_status, status);
}

EXPORT int dcmiv2_get_device_info(int dev_id, int main_cmd, unsigned int sub_cmd, void *buf, unsigned int *size)
{
    FORWARD(dev_id, dcmi_get_device_info, main_cmd, sub_cmd, buf, size);
}

EXPORT int dcmiv2_subscribe_fault_event(int dev_id, struct dcmi_event_filter filter, dcmi_fault_event_callback handler)
{
    (void)filter;
    NEED(handler != NULL && dev_id == -1);
    ENTER(NO_CHIP, 0);
    sim_leave();
    (void)call;
    return sim_subscribe(handler);
}
