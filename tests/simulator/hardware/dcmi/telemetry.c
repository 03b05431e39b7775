/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Health, telemetry, processes and topology of chips. Types that a 910B does not know get -8255, as its manual says.
 */
#include <stdio.h>
#include <string.h>

#include "dcmi_interface.h"
#include "state.h"

#define MAX_PROCESSES 32
#define MAX_ERROR_CODES 128
#define TOPO_SELF 0
#define TOPO_HCCS 3
#define HEALTH_ABSENT 0xFFFFFFFFU

/* A chip that left the bus still answers here: 0xFFFFFFFF says "absent". A test that wants -8012 (dropped, fault
 * 40F84E00) sets it per chip: "dcmi": {"get_device_health": -8012}. */
EXPORT int dcmi_get_device_health(int card_id, int device_id, unsigned int *health)
{
    NEED(health != NULL);
    struct call call;
    int code = sim_enter(__func__, card_id, device_id, &call);
    if (code == DCMI_ERR_DEVICE_NOT_EXIST) {
        code = sim_enter(__func__, NO_CHIP, 0, &call);
        if (code != 0) return code;
        int known = sim_find(call.chips, card_id, device_id) != NULL;
        if (known) *health = HEALTH_ABSENT;
        LEAVE(known ? DCMI_OK : DCMI_ERR_DEVICE_NOT_EXIST);
    }
    if (code != 0) return code;
    *health = (unsigned int)num(call.chip, "health", 0);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_driver_health(unsigned int *health)
{
    NEED(health != NULL);
    ENTER(NO_CHIP, 0);
    *health = (unsigned int)num(cJSON_GetObjectItemCaseSensitive(call.root, "kernel"), "driver_health", 0);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_errorcode_v2(int card_id, int device_id, int *count, unsigned int *list, unsigned int list_len)
{
    NEED(count != NULL && list != NULL && list_len > 0);
    ENTER(card_id, device_id);
    int found = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(call.chip, "error_codes"))
    {
        if (found == MAX_ERROR_CODES || (unsigned int)found == list_len) break;
        list[found++] = hex_or_number(item);
    }
    *count = found;
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_errorcode_string(int card_id, int device_id, unsigned int error, unsigned char *info, int buf_size)
{
    NEED(info != NULL && buf_size > 0);
    ENTER(card_id, device_id);
    char key[16];
    snprintf(key, sizeof key, "%08X", error);
    const cJSON *texts = cJSON_GetObjectItemCaseSensitive(call.root, "error_texts");
    const char *message = text(texts, key, "node type=simulated, sensor type=simulated, event state=simulated fault");
    snprintf((char *)info, (size_t)buf_size, "%s", message);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_network_health(int card_id, int device_id, enum dcmi_rdfx_detect_result *result)
{
    NEED(result != NULL);
    ENTER(card_id, device_id);
    *result = (enum dcmi_rdfx_detect_result)num(call.chip, "network_health", RDFX_DETECT_OK);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_boot_status(int card_id, int device_id, enum dcmi_boot_status *status)
{
    NEED(status != NULL);
    ENTER(card_id, device_id);
    *status = (enum dcmi_boot_status)num(call.chip, "boot_status", BOOT_SYSTEM_START_FINISH);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_power_info(int card_id, int device_id, int *power)
{
    NEED(power != NULL);
    ENTER(card_id, device_id);
    double watts = num(call.chip, "power_w", -1); /* null: measured elsewhere (second die of an A3) */
    if (watts < 0) LEAVE(DCMI_ERR_NOT_SUPPORT);
    *power = (int)(watts * 10 + 0.5); /* unit 0.1 W */
    LEAVE(DCMI_OK);
}

/* 310P cards: the controller of the card measures, for all chips together. */
EXPORT int dcmi_mcu_get_power_info(int card_id, int *power)
{
    NEED(power != NULL);
    ENTER(card_id, 0);
    double watts = num(call.chip, "card_power_w", 72.5);
    *power = (int)(watts * 10 + 0.5);
    LEAVE(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(call.root, "mcu")) ? DCMI_ERR_NOT_SUPPORT : DCMI_OK);
}

EXPORT int dcmi_get_device_temperature(int card_id, int device_id, int *temperature)
{
    NEED(temperature != NULL);
    ENTER(card_id, device_id);
    *temperature = (int)num(call.chip, "temperature_c", 0);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_voltage(int card_id, int device_id, unsigned int *voltage)
{
    NEED(voltage != NULL);
    ENTER(card_id, device_id);
    *voltage = (unsigned int)(num(call.chip, "voltage_v", 0.9) * 100 + 0.5); /* unit 0.01 V */
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_frequency(int card_id, int device_id, enum dcmi_freq_type type, unsigned int *frequency)
{
    NEED(frequency != NULL);
    ENTER(card_id, device_id);
    switch ((int)type) {
    case FREQ_CTRLCPU: *frequency = (unsigned int)num(call.chip, "ctrlcpu_mhz", 2000); break;
    case FREQ_HBM: *frequency = (unsigned int)num(call.chip, "hbm_mhz", 1600); break;
    case FREQ_AICORE_CURRENT: *frequency = (unsigned int)num(call.chip, "aicore_mhz", 1800); break;
    case FREQ_AICORE_MAX: *frequency = (unsigned int)num(call.chip, "aicore_max_mhz", 1800); break;
    default: LEAVE(DCMI_ERR_NOT_SUPPORT);
    }
    LEAVE(DCMI_OK);
}

static unsigned int hbm_percent(const cJSON *chip)
{
    double total = num(chip, "hbm_total_mib", 0);
    return total > 0 ? (unsigned int)(num(chip, "hbm_used_mib", 0) * 100 / total) : 0;
}

EXPORT int dcmi_get_device_utilization_rate(int card_id, int device_id, int input_type, unsigned int *rate)
{
    NEED(rate != NULL);
    ENTER(card_id, device_id);
    switch (input_type) {
    case 2: *rate = (unsigned int)num(call.chip, "aicore_percent", 0); break;
    case 3: *rate = (unsigned int)num(call.chip, "aicpu_percent", 0); break;
    case 4: *rate = (unsigned int)num(call.chip, "ctrlcpu_percent", 0); break;
    case 6: *rate = hbm_percent(call.chip); break;
    case 10: *rate = (unsigned int)num(call.chip, "hbm_bandwidth_percent", 0); break;
    case 12: *rate = (unsigned int)num(call.chip, "vector_percent", 0); break;
    case 13: *rate = (unsigned int)num(call.chip, "npu_percent", num(call.chip, "aicore_percent", 0)); break;
    default: LEAVE(DCMI_ERR_NOT_SUPPORT);
    }
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_multi_utilization_rate(int card_id, int device_id, struct dcmi_multi_utilization_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    memset(info, 0, sizeof *info);
    info->aicore_util = info->aic_util = (unsigned int)num(call.chip, "aicore_percent", 0);
    info->aiv_util = (unsigned int)num(call.chip, "vector_percent", 0);
    info->npu_util = (unsigned int)num(call.chip, "npu_percent", info->aicore_util);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    memset(info, 0, sizeof *info);
    info->memory_size = (unsigned long long)num(call.chip, "hbm_total_mib", 0);
    info->memory_usage = (unsigned long long)num(call.chip, "hbm_used_mib", 0);
    info->freq = (unsigned int)num(call.chip, "hbm_mhz", 1600);
    info->temp = (int)num(call.chip, "hbm_temperature_c", num(call.chip, "temperature_c", 0));
    info->bandwith_util_rate = (unsigned int)num(call.chip, "hbm_bandwidth_percent", 0);
    LEAVE(info->memory_size > 0 ? DCMI_OK : DCMI_ERR_NOT_SUPPORT);
}

/* DDR memory: for the 910B the manual sends callers to hbm_info. A chip with "ddr_total_mib" (310, 310P, 910A) answers. */
EXPORT int dcmi_get_device_memory_info_v3(int card_id, int device_id, struct dcmi_get_memory_info_stru *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    double total = num(call.chip, "ddr_total_mib", 0), used = num(call.chip, "ddr_used_mib", 0);
    if (total <= 0) LEAVE(DCMI_ERR_NOT_SUPPORT);
    memset(info, 0, sizeof *info);
    info->memory_size = (unsigned long long)total;
    info->memory_available = (unsigned long long)(total - used);
    info->freq = (unsigned int)num(call.chip, "ddr_mhz", 0);
    info->hugepagesize = 2048;
    info->utiliza = (unsigned int)(used * 100 / total);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_ecc_info(int card_id, int device_id, enum dcmi_device_type type, struct dcmi_ecc_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    /* 910B: HBM only; a chip without HBM has its DDR memory instead. */
    if (type != (num(call.chip, "hbm_total_mib", 0) > 0 ? ECC_HBM : ECC_DDR)) LEAVE(DCMI_ERR_NOT_SUPPORT);
    const cJSON *ecc = cJSON_GetObjectItemCaseSensitive(call.chip, "ecc");
    memset(info, 0, sizeof *info);
    info->enable_flag = 1;
    info->single_bit_error_cnt = (unsigned int)num(ecc, "single", 0);
    info->double_bit_error_cnt = (unsigned int)num(ecc, "double", 0);
    info->total_single_bit_error_cnt = (unsigned int)num(ecc, "total_single", 0);
    info->total_double_bit_error_cnt = (unsigned int)num(ecc, "total_double", 0);
    info->double_bit_isolated_pages_cnt = (unsigned int)num(ecc, "isolated_double", 0); /* single_... is always 0 */
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_sensor_info(int card_id, int device_id, enum dcmi_manager_sensor_id id, union dcmi_sensor_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    memset(info, 0, sizeof *info);
    switch ((int)id) {
    case SENSOR_THERMAL_THRESHOLD:
        info->temp[0] = (signed char)num(call.chip, "temperature_limit_c", 105);
        info->temp[1] = (signed char)num(call.chip, "temperature_reset_c", 115);
        break;
    case SENSOR_SOC_TEMP: info->iint = (int)num(call.chip, "temperature_c", 0); break;
    default: LEAVE(DCMI_ERR_NOT_SUPPORT);
    }
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_resource_info(int card_id, int device_id, struct dcmi_proc_mem_info *info, int *proc_num)
{
    NEED(info != NULL && proc_num != NULL);
    ENTER(card_id, device_id);
    int found = 0;
    const cJSON *process;
    cJSON_ArrayForEach(process, cJSON_GetObjectItemCaseSensitive(call.chip, "processes"))
    {
        if (found == MAX_PROCESSES) break;
        info[found].proc_id = (int)num(process, "pid", 0);
        info[found].proc_mem_usage = (unsigned long)(num(process, "memory_mib", 0) * 1024 * 1024); /* bytes */
        found++;
    }
    *proc_num = found;
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_topo_info_by_device_id(int card1, int device1, int card2, int device2, int *topo)
{
    NEED(topo != NULL);
    ENTER(card1, device1);
    const cJSON *other = sim_find(call.chips, card2, device2);
    if (other == NULL || !sim_present(other)) LEAVE(DCMI_ERR_DEVICE_NOT_EXIST);
    const cJSON *kinds = cJSON_GetObjectItemCaseSensitive(call.root, "topo");
    double far = num(kinds, "other", num(call.root, "topo", TOPO_HCCS));
    int ring = (int)num(kinds, "ring", 0); /* 910A: HCCS joins so many neighbours, by physical id */
    int apart = ring > 0 && (int)num(call.chip, "phy_id", 0) / ring != (int)num(other, "phy_id", 0) / ring;
    if (apart) far = num(kinds, "rings", far);
    *topo = other == call.chip ? TOPO_SELF : (int)(card1 == card2 ? num(kinds, "card", far) : far);
    LEAVE(DCMI_OK);
}

/* length: in = size of the buffer, out = length of the text */
EXPORT int dcmi_get_affinity_cpu_info_by_device_id(int card_id, int device_id, char *affinity_cpu, int *length)
{
    NEED(affinity_cpu != NULL && length != NULL);
    ENTER(card_id, device_id);
    const char *cpus = text(call.chip, "affinity_cpu", NULL);
    if (cpus == NULL) LEAVE(DCMI_ERR_NOT_SUPPORT);
    strcpy(affinity_cpu, cpus); /* callers bring 32 bytes or more and need not set length (header constant) */
    *length = (int)strlen(cpus);
    LEAVE(DCMI_OK);
}

/* The simulated server has no RoCE set up. */
EXPORT int dcmi_get_device_ip(int card_id, int device_id, enum dcmi_port_type type, int port_id, struct dcmi_ip_addr *ip,
                              struct dcmi_ip_addr *mask)
{
    (void)type, (void)port_id;
    NEED(ip != NULL && mask != NULL);
    ENTER(card_id, device_id);
    LEAVE(DCMI_ERR_NOT_SUPPORT);
}
