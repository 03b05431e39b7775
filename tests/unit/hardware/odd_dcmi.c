/* SPDX-License-Identifier: GPL-3.0-or-later
 * A small libdcmi.so with the oddities a driver may show. Macros choose: NOISE prints on stdout, REFUSE and HANG and CRASH are about
 * dcmi_init, SECOND is the library of Ascend 950 (dcmi_init refuses, dcmiv2_ answers), OLD has only the functions of old drivers.
 * Without a macro: cards 4 and 9; card 4 has two chips, the second of which fails in its health; card 9 does not answer at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chip_v2 { unsigned char type[32], name[32], ver[32]; unsigned int aicore; unsigned char npu_name[32]; };
struct chip_v1 { unsigned char type[32], name[32], ver[32]; unsigned int aicore; };
struct pcie_all { unsigned int vender, subvender, device, subdevice; int domain; unsigned int bus, dev, func; unsigned char reserve[32]; };
struct pcie_old { unsigned int device, vender, subvender, subdevice, dev, bus, func; };
struct hbm { unsigned long long size; unsigned int freq; unsigned long long usage; int temp; unsigned int bandwidth; };
struct elabel { char product[256], model[256], manufacturer[256], date[256], serial[256]; };
struct die { unsigned int soc_die[5]; };

int dcmi_init(void)
{
#ifdef HANG
    sleep(3600);
#endif
#ifdef CRASH
    fprintf(stderr, "about to crash\n");
    abort();
#endif
#ifdef NOISE
    for (int i = 0; i < 2000; i++) {
        printf("DrvMngGetConsoleLogLevel failed. (ret=4)\n");
    }
    fflush(stdout);
#endif
#ifdef REFUSE
    return -8005;
#endif
#ifdef SECOND
    return -8255;
#endif
    return 0;
}

#ifndef SECOND
int dcmi_get_driver_version(char *text, unsigned int length) { strncpy(text, "25.5.0", length); return 0; }

static int cards(int *count, int *list) { *count = 2; list[0] = 4; list[1] = 9; return 0; }

#ifdef OLD
int dcmi_get_card_num_list(int *count, int *list, int length) { (void)length; return cards(count, list); }
int dcmi_get_device_pcie_info(int card, int device, struct pcie_old *info)
{
    memset(info, 0, sizeof(*info));
    info->device = 0xd500; info->vender = 0x19e5; info->subvender = 0x0200; info->subdevice = 0x0110; info->bus = card; info->func = device;
    return 0;
}
int dcmi_get_device_chip_info(int card, int device, struct chip_v1 *info)
{
    (void)card; (void)device;
    memset(info, 0, sizeof(*info));
    strcpy((char *)info->name, "310P3");
    info->aicore = 8;
    return 0;
}
int dcmi_mcu_get_power_info(int card, int *power) { *power = card == 4 ? 725 : 0x7fff; return 0; }
int dcmi_get_device_power_info(int card, int device, int *power) { (void)card; (void)device; (void)power; return -8255; }
#else
int dcmi_get_card_list(int *count, int *list, int length) { (void)length; return cards(count, list); }
int dcmi_get_device_pcie_info_v2(int card, int device, struct pcie_all *info)
{
    memset(info, 0, sizeof(*info));
    info->vender = 0x19e5; info->device = 0xd802; info->subvender = 0x19e5; info->subdevice = 0x3000;
    info->domain = 1; info->bus = 0xc0 + card; info->dev = 0x1f; info->func = device;
    return 0;
}
int dcmi_get_device_chip_info_v2(int card, int device, struct chip_v2 *info)
{
    memset(info, 0, sizeof(*info));
    sprintf((char *)info->name, "910B%d", card);
    sprintf((char *)info->npu_name, "NA");
    info->aicore = 20 + device;
    return 0;
}
int dcmi_get_device_type(int card, int device, unsigned int *type) { *type = card == 4 && device == 2 ? 1 : 0; return 0; }
int dcmi_get_device_power_info(int card, int device, int *power) { (void)card; *power = 904 + device; return 0; }
#endif

int dcmi_get_device_num_in_card(int card, int *count)
{
    if (card == 9) {
        return -8012;
    }
    *count = 3;
#ifdef OLD
    *count = 2;
#endif
    return 0;
}
int dcmi_get_device_logic_id(int *logic, int card, int device) { *logic = card - 4 + device; return 0; }
int dcmi_get_device_phyid_from_logicid(unsigned int logic, unsigned int *physical) { *physical = logic + 6; return 0; }
int dcmi_get_device_health(int card, int device, unsigned int *health)
{
    (void)card;
    *health = 2;
    return device == 1 ? -8012 : 0;
}
int dcmi_get_device_errorcode_v2(int card, int device, int *count, unsigned int *list, unsigned int length)
{
    (void)card; (void)device; (void)length;
    *count = 2; list[0] = 0x80e18005; list[1] = 0xe3a203;
    return 0;
}
int dcmi_get_device_temperature(int card, int device, int *degrees) { (void)card; *degrees = device ? -3 : 41; return 0; }
int dcmi_get_device_utilization_rate(int card, int device, int type, unsigned int *rate)
{
    (void)card; (void)device;
    *rate = 70 + type;
    return type == 13 ? -8255 : 0;
}
int dcmi_get_device_hbm_info(int card, int device, struct hbm *info)
{
    (void)card;
    memset(info, 0, sizeof(*info));
    info->size = 65536; info->usage = 3402; info->temp = 44;
    return device ? -8005 : 0;
}
int dcmi_get_card_elabel_v2(int card, struct elabel *info)
{
    (void)card;
    memset(info, 0, sizeof(*info));
    strcpy(info->serial, "0000000000000001 ");
    strcpy(info->product, "NA");
    return 0;
}
int dcmi_get_device_die_v2(int card, int device, int type, struct die *die)
{
    (void)card;
    for (int i = 0; i < 5; i++) {
        die->soc_die[i] = device == 1 ? 0 : 0x10 * type + device + i;
    }
    return 0;
}
#else
int dcmiv2_init(void) { return 0; }
int dcmiv2_get_driver_version(char *text, unsigned int length) { strncpy(text, "25.7.rc1", length); return 0; }
int dcmiv2_get_device_list(int *list, int *count, int length) { (void)length; *count = 2; list[0] = 0; list[1] = 1; return 0; }
int dcmiv2_get_chip_phy_id_by_dev_id(int device, unsigned int *physical) { *physical = 7 - device; return 0; }
int dcmiv2_get_device_chip_info(int device, struct chip_v2 *info)
{
    memset(info, 0, sizeof(*info));
    strcpy((char *)info->name, "Ascend950PR");
    info->aicore = 32 + device;
    return 0;
}
int dcmiv2_get_device_pcie_info(int device, struct pcie_all *info)
{
    memset(info, 0, sizeof(*info));
    info->vender = 0x19e5; info->device = 0xd806; info->subvender = 0x19e5; info->subdevice = 0x4004; info->bus = 0x61 + device;
    return 0;
}
int dcmiv2_get_device_health(int device, unsigned int *health) { *health = device ? 0xffffffffu : 0; return 0; }
int dcmiv2_get_device_error_code_list(int device, int *count, unsigned int *list, unsigned int length)
{
    (void)length;
    *count = device;
    list[0] = 0x81af8000;
    return 0;
}
#endif
