/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Enumeration, versions and identity of chips.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcmi_interface.h"
#include "state.h"

#define MAX_CARDS 64

EXPORT int dcmi_init(void)
{
    ENTER(NO_CHIP, 0);
    LEAVE(sim_second_api(call.root) ? DCMI_ERR_NOT_SUPPORT : sim_mark_initialised());
}

static int list_cards(const cJSON *chips, int *card_num, int *card_list, int list_len)
{
    int count = 0;
    const cJSON *chip;
    cJSON_ArrayForEach(chip, chips)
    {
        int card = (int)num(chip, "card_id", -1), known = !sim_present(chip);
        for (int i = 0; i < count && !known; i++) known = card_list[i] == card;
        if (known) continue;
        if (count >= list_len || count >= MAX_CARDS) break;
        card_list[count++] = card;
    }
    *card_num = count;
    return DCMI_OK;
}

EXPORT int dcmi_get_card_list(int *card_num, int *card_list, int list_len)
{
    NEED(card_num != NULL && card_list != NULL && list_len > 0);
    ENTER(NO_CHIP, 0);
    LEAVE(list_cards(call.chips, card_num, card_list, list_len));
}

EXPORT int dcmi_get_card_num_list(int *card_num, int *card_list, int list_len)
{
    NEED(card_num != NULL && card_list != NULL && list_len > 0);
    ENTER(NO_CHIP, 0);
    LEAVE(list_cards(call.chips, card_num, card_list, list_len));
}

/* card < 0: of all cards */
static int count_devices(const cJSON *chips, int card)
{
    int count = 0;
    const cJSON *chip;
    cJSON_ArrayForEach(chip, chips)
    {
        if (sim_present(chip) && (card < 0 || (int)num(chip, "card_id", -1) == card)) count++;
    }
    return count;
}

EXPORT int dcmi_get_device_num_in_card(int card_id, int *device_num)
{
    NEED(device_num != NULL && card_id >= 0 && card_id < 0x10000);
    ENTER(NO_CHIP, 0);
    *device_num = count_devices(call.chips, card_id);
    LEAVE(*device_num > 0 ? DCMI_OK : DCMI_ERR_DEVICE_NOT_EXIST);
}

EXPORT int dcmi_get_fault_device_num_in_card(int card_id, int *device_num)
{
    NEED(device_num != NULL && card_id >= 0);
    ENTER(NO_CHIP, 0);
    int all = 0, good = count_devices(call.chips, card_id);
    const cJSON *chip;
    cJSON_ArrayForEach(chip, call.chips) all += (int)num(chip, "card_id", -1) == card_id;
    *device_num = all - good;
    LEAVE(all > 0 ? DCMI_OK : DCMI_ERR_DEVICE_NOT_EXIST);
}

EXPORT int dcmi_get_device_id_in_card(int card_id, int *device_id_max, int *mcu_id, int *cpu_id)
{
    NEED(device_id_max != NULL && mcu_id != NULL && cpu_id != NULL && card_id >= 0);
    ENTER(NO_CHIP, 0);
    *device_id_max = count_devices(call.chips, card_id);
    /* The MCU has the id after the chips (npu-smi info -m of a 910B3); a 310B has none. */
    *mcu_id = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(call.root, "mcu")) ? -1 : *device_id_max;
    *cpu_id = -1;
    LEAVE(*device_id_max > 0 ? DCMI_OK : DCMI_ERR_DEVICE_NOT_EXIST);
}

EXPORT int dcmi_get_all_device_count(int *all_device_count)
{
    NEED(all_device_count != NULL);
    ENTER(NO_CHIP, 0);
    *all_device_count = count_devices(call.chips, -1);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_type(int card_id, int device_id, enum dcmi_unit_type *device_type)
{
    NEED(device_type != NULL && card_id >= 0 && device_id >= 0);
    ENTER(NO_CHIP, 0);
    const cJSON *chip = sim_find(call.chips, card_id, device_id);
    int devices = count_devices(call.chips, card_id);
    *device_type = INVALID_TYPE;
    if (chip != NULL && sim_present(chip)) *device_type = NPU_TYPE;
    else if (devices > 0 && device_id == devices && !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(call.root, "mcu")))
        *device_type = MCU_TYPE;
    LEAVE(*device_type == INVALID_TYPE ? DCMI_ERR_DEVICE_NOT_EXIST : DCMI_OK);
}

static int logic_id(const cJSON *chips, const cJSON *wanted)
{
    int index = 0;
    const cJSON *chip;
    cJSON_ArrayForEach(chip, chips)
    {
        if (chip == wanted) return index;
        index++;
    }
    return -1;
}

static const cJSON *by_logic_id(const cJSON *chips, unsigned int logicid)
{
    const cJSON *chip = logicid > 0xFFFF ? NULL : cJSON_GetArrayItem(chips, (int)logicid);
    return chip != NULL && sim_present(chip) ? chip : NULL;
}

static const cJSON *by_phy_id(const cJSON *chips, unsigned int phyid)
{
    const cJSON *chip;
    cJSON_ArrayForEach(chip, chips)
    {
        if (sim_present(chip) && (unsigned int)num(chip, "phy_id", -1) == phyid) return chip;
    }
    return NULL;
}

EXPORT int dcmi_get_device_logic_id(int *device_logic_id, int card_id, int device_id)
{
    NEED(device_logic_id != NULL);
    ENTER(card_id, device_id);
    *device_logic_id = logic_id(call.chips, call.chip);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_phyid_from_logicid(unsigned int logicid, unsigned int *phyid)
{
    NEED(phyid != NULL);
    ENTER(NO_CHIP, 0);
    const cJSON *chip = by_logic_id(call.chips, logicid);
    if (chip != NULL) *phyid = (unsigned int)num(chip, "phy_id", 0);
    LEAVE(chip != NULL ? DCMI_OK : DCMI_ERR_INVALID_DEVICE_ID);
}

EXPORT int dcmi_get_device_logicid_from_phyid(unsigned int phyid, unsigned int *logicid)
{
    NEED(logicid != NULL);
    ENTER(NO_CHIP, 0);
    const cJSON *chip = by_phy_id(call.chips, phyid);
    if (chip != NULL) *logicid = (unsigned int)logic_id(call.chips, chip);
    LEAVE(chip != NULL ? DCMI_OK : DCMI_ERR_INVALID_DEVICE_ID);
}

static int card_and_device(const cJSON *chip, int *card_id, int *device_id)
{
    if (chip == NULL) return DCMI_ERR_INVALID_DEVICE_ID;
    *card_id = (int)num(chip, "card_id", 0);
    *device_id = (int)num(chip, "device_id", 0);
    return DCMI_OK;
}

EXPORT int dcmi_get_card_id_device_id_from_logicid(int *card_id, int *device_id, unsigned int device_logic_id)
{
    NEED(card_id != NULL && device_id != NULL);
    ENTER(NO_CHIP, 0);
    LEAVE(card_and_device(by_logic_id(call.chips, device_logic_id), card_id, device_id));
}

EXPORT int dcmi_get_card_id_device_id_from_phyid(int *card_id, int *device_id, unsigned int device_phy_id)
{
    NEED(card_id != NULL && device_id != NULL);
    ENTER(NO_CHIP, 0);
    LEAVE(card_and_device(by_phy_id(call.chips, device_phy_id), card_id, device_id));
}

static const char *driver_version(const struct call *call)
{
    return text(cJSON_GetObjectItemCaseSensitive(call->root, "kernel"), "driver_version", "");
}

EXPORT int dcmi_get_dcmi_version(char *dcmi_ver, unsigned int len)
{
    ENTER(NO_CHIP, 0);
    LEAVE(copy_text(dcmi_ver, len, driver_version(&call)));
}

EXPORT int dcmi_get_driver_version(char *driver_ver, unsigned int len)
{
    ENTER(NO_CHIP, 0);
    LEAVE(copy_text(driver_ver, len, driver_version(&call)));
}

/* The older call: the firmware that runs on one chip. */
EXPORT int dcmi_get_version(int card_id, int device_id, char *ver, unsigned int ver_len, int *len)
{
    NEED(ver != NULL && len != NULL);
    ENTER(card_id, device_id);
    code = copy_text(ver, ver_len, text(call.chip, "firmware_running", ""));
    if (code == 0) *len = (int)strlen(ver);
    LEAVE(code);
}

static void fill_chip(const cJSON *chip, struct dcmi_chip_info *info)
{
    memset(info, 0, sizeof *info);
    copy_text((char *)info->chip_type, sizeof info->chip_type, "Ascend");
    copy_text((char *)info->chip_name, sizeof info->chip_name, text(chip, "name", ""));
    copy_text((char *)info->chip_ver, sizeof info->chip_ver, text(chip, "chip_version", "V1"));
    info->aicore_cnt = (unsigned int)num(chip, "aicore_count", 20);
}

EXPORT int dcmi_get_device_chip_info(int card_id, int device_id, struct dcmi_chip_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    fill_chip(call.chip, info);
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_chip_info_v2(int card_id, int device_id, struct dcmi_chip_info_v2 *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    struct dcmi_chip_info old;
    fill_chip(call.chip, &old);
    memset(info, 0, sizeof *info);
    memcpy(info, &old, sizeof old); /* the new structure begins with the old one */
    copy_text((char *)info->npu_name, sizeof info->npu_name, text(call.chip, "npu_name", text(call.chip, "name", "")));
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_device_board_info(int card_id, int device_id, struct dcmi_board_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    info->board_id = (unsigned int)num(call.root, "board_id", 0x30);
    info->pcb_id = 0;
    info->bom_id = 1;
    info->slot_id = (unsigned int)card_id;
    LEAVE(DCMI_OK);
}

EXPORT int dcmi_get_product_type(int card_id, int device_id, char *product_type_str, int buf_size)
{
    NEED(product_type_str != NULL && buf_size > 0);
    ENTER(card_id, device_id);
    LEAVE(copy_text(product_type_str, (size_t)buf_size, text(call.root, "product", "")));
}

static int fill_elabel(const struct call *call, const cJSON *chip, struct dcmi_elabel_info *info)
{
    memset(info, 0, sizeof *info);
    copy_text(info->product_name, sizeof info->product_name, text(call->root, "product", ""));
    copy_text(info->model, sizeof info->model, text(chip, "model", "NA"));
    copy_text(info->manufacturer, sizeof info->manufacturer, text(chip, "manufacturer", "Huawei"));
    copy_text(info->manufacturer_date, sizeof info->manufacturer_date, text(chip, "manufacturer_date", "NA"));
    return copy_text(info->serial_number, sizeof info->serial_number, text(chip, "serial", "NA"));
}

EXPORT int dcmi_get_card_elabel_v2(int card_id, struct dcmi_elabel_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, 0);
    LEAVE(fill_elabel(&call, call.chip, info));
}

EXPORT int dcmi_get_device_elabel_info(int card_id, int device_id, struct dcmi_elabel_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    LEAVE(fill_elabel(&call, call.chip, info));
}

EXPORT int dcmi_get_device_die_v2(int card_id, int device_id, enum dcmi_die_type type, struct dcmi_die_id *die)
{
    NEED(die != NULL);
    ENTER(card_id, device_id);
    const cJSON *words = cJSON_GetObjectItemCaseSensitive(call.chip, type == VDIE ? "vdie" : type == NDIE ? "ndie" : "ddie");
    if (cJSON_GetArraySize(words) != 5) LEAVE(DCMI_ERR_NOT_SUPPORT);
    for (int i = 0; i < 5; i++) die->soc_die[i] = hex_or_number(cJSON_GetArrayItem(words, i));
    LEAVE(DCMI_OK);
}

static unsigned int pci_id(const struct call *call, const char *key)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(call->chip, "pci"), key);
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(call->root, "pci"), key);
    return hex_or_number(own != NULL ? own : all);
}

static int fill_pcie(const struct call *call, struct dcmi_pcie_info_all *info)
{
    unsigned int domain, bus, device, function;
    memset(info, 0, sizeof *info);
    if (sscanf(text(call->chip, "pci_address", ""), "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return DCMI_ERR_NOT_SUPPORT;
    info->venderid = pci_id(call, "vendor");
    info->deviceid = pci_id(call, "device");
    info->subvenderid = pci_id(call, "subsystem_vendor");
    info->subdeviceid = pci_id(call, "subsystem_device");
    info->domain = (int)domain;
    info->bdf_busid = bus;
    info->bdf_deviceid = device;
    info->bdf_funcid = function;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_pcie_info_v2(int card_id, int device_id, struct dcmi_pcie_info_all *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    LEAVE(fill_pcie(&call, info));
}

EXPORT int dcmi_get_device_pcie_info(int card_id, int device_id, struct dcmi_pcie_info *info)
{
    NEED(info != NULL);
    ENTER(card_id, device_id);
    struct dcmi_pcie_info_all all;
    code = fill_pcie(&call, &all);
    *info = (struct dcmi_pcie_info){all.deviceid, all.venderid, all.subvenderid, all.subdeviceid,
                                    all.bdf_deviceid, all.bdf_busid, all.bdf_funcid};
    LEAVE(code);
}

EXPORT int dcmi_get_device_compatibility(int card_id, int device_id, enum dcmi_device_compat *compat)
{
    NEED(compat != NULL);
    ENTER(card_id, device_id);
    *compat = (enum dcmi_device_compat)num(call.chip, "compatibility", COMPAT_OK);
    LEAVE(DCMI_OK);
}
