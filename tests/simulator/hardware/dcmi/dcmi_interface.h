/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The part of DCMI (Device Control Management Interface) that the simulated libdcmi.so answers.
 * Names, argument order, values and sizes are interface facts of the open driver (hicann/driver, dcmi_interface_api.h
 * of 2026-07-21, 910B manual); sizes are for LP64 and are asserted below. The text is our own.
 */
#ifndef NPU_SIM_DCMI_INTERFACE_H
#define NPU_SIM_DCMI_INTERFACE_H

#include <stddef.h>

#define DCMI_OK 0
#define DCMI_ERR_INVALID_PARAMETER (-8001)
#define DCMI_ERR_INNER (-8005)
#define DCMI_ERR_INVALID_DEVICE_ID (-8007)
#define DCMI_ERR_DEVICE_NOT_EXIST (-8008)
#define DCMI_ERR_NOT_SUPPORT (-8255)

enum dcmi_unit_type { NPU_TYPE = 0, MCU_TYPE = 1, CPU_TYPE = 2, INVALID_TYPE = 0xFF };
enum dcmi_die_type { NDIE = 0, VDIE = 1, DDIE = 2 };
enum dcmi_freq_type { FREQ_DDR = 1, FREQ_CTRLCPU = 2, FREQ_HBM = 6, FREQ_AICORE_CURRENT = 7, FREQ_AICORE_MAX = 9 };
enum dcmi_device_type { ECC_DDR = 0, ECC_SRAM = 1, ECC_HBM = 2, ECC_NPU = 3, ECC_NONE = 0xff };
enum dcmi_device_compat { COMPAT_OK = 1, COMPAT_NOT_OK = 2, COMPAT_UNKNOWN = 3 };
enum dcmi_rdfx_detect_result { RDFX_DETECT_OK = 0 };
enum dcmi_boot_status { BOOT_UNINIT = 0, BOOT_BIOS = 1, BOOT_OS = 2, BOOT_FINISH = 3, BOOT_SYSTEM_START_FINISH = 16 };
enum dcmi_port_type { VNIC_PORT = 0, ROCE_PORT = 1 };

struct dcmi_chip_info {
    unsigned char chip_type[32];
    unsigned char chip_name[32];
    unsigned char chip_ver[32];
    unsigned int aicore_cnt;
};
struct dcmi_chip_info_v2 {
    unsigned char chip_type[32];
    unsigned char chip_name[32];
    unsigned char chip_ver[32];
    unsigned int aicore_cnt;
    unsigned char npu_name[32];
};
struct dcmi_board_info {
    unsigned int board_id, pcb_id, bom_id, slot_id;
};
/* The two PCIe structures have different field orders. */
struct dcmi_pcie_info {
    unsigned int deviceid, venderid, subvenderid, subdeviceid, bdf_deviceid, bdf_busid, bdf_funcid;
};
struct dcmi_pcie_info_all {
    unsigned int venderid, subvenderid, deviceid, subdeviceid;
    int domain;
    unsigned int bdf_busid, bdf_deviceid, bdf_funcid;
    unsigned char reserve[32];
};
struct dcmi_elabel_info {
    char product_name[256], model[256], manufacturer[256], manufacturer_date[256], serial_number[256];
};
struct dcmi_die_id {
    unsigned int soc_die[5];
};
struct dcmi_hbm_info {
    unsigned long long memory_size;
    unsigned int freq;
    unsigned long long memory_usage;
    int temp;
    unsigned int bandwith_util_rate;
};
struct dcmi_get_memory_info_stru {
    unsigned long long memory_size, memory_available;
    unsigned int freq;
    unsigned long hugepagesize, hugepages_total, hugepages_free;
    unsigned int utiliza;
    unsigned char reserve[60];
};
struct dcmi_ecc_info {
    int enable_flag;
    unsigned int single_bit_error_cnt, double_bit_error_cnt;
    unsigned int total_single_bit_error_cnt, total_double_bit_error_cnt;
    unsigned int single_bit_isolated_pages_cnt, double_bit_isolated_pages_cnt;
};
struct dcmi_proc_mem_info {
    int proc_id;
    unsigned long proc_mem_usage;
};
struct dcmi_multi_utilization_info {
    unsigned int aic_util, aiv_util, aicore_util, npu_util, reserved[8];
};
struct dcmi_ip_addr {
    union {
        unsigned char ip4[4];
        unsigned char ip6[16];
    } u_addr;
    unsigned int ip_type;
};

/* What dcmi_get_device_sensor_info fills; of DCMI_THERMAL_THRESHOLD_ID the first temperature throttles, the second resets. */
enum dcmi_manager_sensor_id { SENSOR_THERMAL_THRESHOLD = 9, SENSOR_SOC_TEMP = 11 };
union dcmi_sensor_info {
    unsigned char uchar;
    unsigned short ushort;
    unsigned int uint;
    signed int iint;
    signed char temp[2];
    signed int ntc_tmp[4];
    unsigned int data[16];
};

/* Virtual devices */
#define MAIN_VDEV_MNG 52
#define VDEV_ONE 0
#define VDEV_TOTALS 1
#define MAX_VDEVS 32
struct dcmi_base_resource {
    unsigned long long token, token_max, task_timeout;
    unsigned int vfg_id;
    unsigned char vip_mode;
    unsigned char reserved[35];
};
struct dcmi_computing_resource {
    float aic, aiv;
    unsigned short dsa, rtsq, acsq, cdqm, c_core, ffts, sdma, pcie_dma;
    unsigned long long memory_size;
    unsigned int event_id, notify_id, stream_id, model_id;
    unsigned short topic_schedule_aicpu, host_ctrl_cpu, host_aicpu, device_aicpu, topic_ctrl_cpu_slot;
    unsigned int vdev_aicore_utilization;
    unsigned long long vdev_memory_total, vdev_memory_free;
    unsigned char reserved[16];
};
struct dcmi_media_resource {
    float jpegd, jpege, vpc, vdec, pngd, venc;
    unsigned char reserved[32];
};
struct dcmi_vdev_query_info {
    char name[16];
    unsigned int status, is_container_used, vfid, vfg_id;
    unsigned long long container_id;
    struct dcmi_base_resource base;
    struct dcmi_computing_resource computing;
    struct dcmi_media_resource media;
};
struct dcmi_vdev_query_stru {
    unsigned int vdev_id;
    struct dcmi_vdev_query_info query_info;
};
struct dcmi_soc_total_resource {
    unsigned int vdev_num, vdev_id[MAX_VDEVS], vfg_num, vfg_bitmap;
    struct dcmi_base_resource base;
    struct dcmi_computing_resource computing;
    struct dcmi_media_resource media;
};

/* Fault events */
struct dcmi_event_filter {
    unsigned long long filter_flag;
    unsigned int event_id;
    unsigned char severity, node_type;
    unsigned char resv[32];
};
struct dcmi_dms_fault_event {
    unsigned int event_id;
    unsigned short deviceid;
    unsigned char node_type, node_id, sub_node_type, sub_node_id, severity, assertion;
    int event_serial_num, notify_serial_num;
    unsigned long long alarm_raised_time;
    char event_name[256];
    char additional_info[32];
    unsigned char os_id;
    unsigned short node_type_ex, sub_node_type_ex;
    unsigned char resv[26];
};
struct dcmi_event {
    unsigned int type; /* 0: DMS fault */
    union {
        struct dcmi_dms_fault_event dms_event;
    } event_t;
};
enum { ASSERTION_RECOVERY = 0, ASSERTION_OCCURRENCE = 1, ASSERTION_ONCE = 2 };
typedef void (*dcmi_fault_event_callback)(struct dcmi_event *event);

#define SIZE_IS(type, size) _Static_assert(sizeof(struct type) == (size), #type)
#define OFFSET_IS(type, field, at) _Static_assert(offsetof(struct type, field) == (at), #type "." #field)
SIZE_IS(dcmi_chip_info, 100);
SIZE_IS(dcmi_chip_info_v2, 132);
SIZE_IS(dcmi_board_info, 16);
SIZE_IS(dcmi_pcie_info, 28);
SIZE_IS(dcmi_pcie_info_all, 64);
SIZE_IS(dcmi_elabel_info, 1280);
SIZE_IS(dcmi_die_id, 20);
SIZE_IS(dcmi_hbm_info, 32);
SIZE_IS(dcmi_get_memory_info_stru, 112);
SIZE_IS(dcmi_ecc_info, 28);
SIZE_IS(dcmi_proc_mem_info, 16);
SIZE_IS(dcmi_multi_utilization_info, 48);
SIZE_IS(dcmi_ip_addr, 20);
_Static_assert(sizeof(union dcmi_sensor_info) == 64, "dcmi_sensor_info");
SIZE_IS(dcmi_base_resource, 64);
SIZE_IS(dcmi_computing_resource, 96);
SIZE_IS(dcmi_media_resource, 56);
SIZE_IS(dcmi_vdev_query_stru, 264);
SIZE_IS(dcmi_soc_total_resource, 360);
SIZE_IS(dcmi_event_filter, 48);
SIZE_IS(dcmi_dms_fault_event, 352);
SIZE_IS(dcmi_event, 360);
OFFSET_IS(dcmi_soc_total_resource, computing, 208);
OFFSET_IS(dcmi_vdev_query_stru, query_info, 8);
OFFSET_IS(dcmi_computing_resource, memory_size, 24);
OFFSET_IS(dcmi_computing_resource, vdev_aicore_utilization, 60);
OFFSET_IS(dcmi_dms_fault_event, severity, 10);
OFFSET_IS(dcmi_dms_fault_event, alarm_raised_time, 24);
OFFSET_IS(dcmi_dms_fault_event, additional_info, 288);
OFFSET_IS(dcmi_dms_fault_event, node_type_ex, 322);
OFFSET_IS(dcmi_chip_info_v2, npu_name, 100);
OFFSET_IS(dcmi_pcie_info_all, domain, 16);
OFFSET_IS(dcmi_hbm_info, memory_usage, 16);
OFFSET_IS(dcmi_get_memory_info_stru, hugepagesize, 24);

/* Loading and enumeration */
int dcmi_init(void);
int dcmi_get_card_list(int *card_num, int *card_list, int list_len);
int dcmi_get_card_num_list(int *card_num, int *card_list, int list_len);
int dcmi_get_device_num_in_card(int card_id, int *device_num);
int dcmi_get_device_id_in_card(int card_id, int *device_id_max, int *mcu_id, int *cpu_id);
int dcmi_get_fault_device_num_in_card(int card_id, int *device_num);
int dcmi_get_all_device_count(int *all_device_count);
int dcmi_get_device_type(int card_id, int device_id, enum dcmi_unit_type *device_type);
int dcmi_get_device_logic_id(int *device_logic_id, int card_id, int device_id);
int dcmi_get_device_phyid_from_logicid(unsigned int logicid, unsigned int *phyid);
int dcmi_get_device_logicid_from_phyid(unsigned int phyid, unsigned int *logicid);
int dcmi_get_card_id_device_id_from_logicid(int *card_id, int *device_id, unsigned int device_logic_id);
int dcmi_get_card_id_device_id_from_phyid(int *card_id, int *device_id, unsigned int device_phy_id);

/* Versions and identity */
int dcmi_get_dcmi_version(char *dcmi_ver, unsigned int len);
int dcmi_get_driver_version(char *driver_ver, unsigned int len);
int dcmi_get_version(int card_id, int device_id, char *ver, unsigned int ver_len, int *len);
int dcmi_get_device_chip_info(int card_id, int device_id, struct dcmi_chip_info *info);
int dcmi_get_device_chip_info_v2(int card_id, int device_id, struct dcmi_chip_info_v2 *info);
int dcmi_get_device_board_info(int card_id, int device_id, struct dcmi_board_info *info);
int dcmi_get_product_type(int card_id, int device_id, char *product_type_str, int buf_size);
int dcmi_get_card_elabel_v2(int card_id, struct dcmi_elabel_info *info);
int dcmi_get_device_elabel_info(int card_id, int device_id, struct dcmi_elabel_info *info);
int dcmi_get_device_die_v2(int card_id, int device_id, enum dcmi_die_type type, struct dcmi_die_id *die);
int dcmi_get_device_pcie_info(int card_id, int device_id, struct dcmi_pcie_info *info);
int dcmi_get_device_pcie_info_v2(int card_id, int device_id, struct dcmi_pcie_info_all *info);
int dcmi_get_device_compatibility(int card_id, int device_id, enum dcmi_device_compat *compat);
int dcmi_get_topo_info_by_device_id(int card1, int device1, int card2, int device2, int *topo);
int dcmi_get_affinity_cpu_info_by_device_id(int card_id, int device_id, char *affinity_cpu, int *length);
int dcmi_get_device_ip(int card_id, int device_id, enum dcmi_port_type type, int port_id, struct dcmi_ip_addr *ip,
                       struct dcmi_ip_addr *mask);

/* Health */
int dcmi_get_device_health(int card_id, int device_id, unsigned int *health);
int dcmi_get_driver_health(unsigned int *health);
int dcmi_get_device_errorcode_v2(int card_id, int device_id, int *count, unsigned int *list, unsigned int list_len);
int dcmi_get_device_errorcode_string(int card_id, int device_id, unsigned int code, unsigned char *info, int buf_size);
int dcmi_get_device_network_health(int card_id, int device_id, enum dcmi_rdfx_detect_result *result);
int dcmi_get_device_boot_status(int card_id, int device_id, enum dcmi_boot_status *status);

/* Telemetry */
int dcmi_mcu_get_power_info(int card_id, int *power);
int dcmi_get_device_power_info(int card_id, int device_id, int *power);
int dcmi_get_device_temperature(int card_id, int device_id, int *temperature);
int dcmi_get_device_voltage(int card_id, int device_id, unsigned int *voltage);
int dcmi_get_device_frequency(int card_id, int device_id, enum dcmi_freq_type type, unsigned int *frequency);
int dcmi_get_device_utilization_rate(int card_id, int device_id, int input_type, unsigned int *rate);
int dcmi_get_device_multi_utilization_rate(int card_id, int device_id, struct dcmi_multi_utilization_info *info);
int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info *info);
int dcmi_get_device_memory_info_v3(int card_id, int device_id, struct dcmi_get_memory_info_stru *info);
int dcmi_get_device_ecc_info(int card_id, int device_id, enum dcmi_device_type type, struct dcmi_ecc_info *info);
int dcmi_get_device_resource_info(int card_id, int device_id, struct dcmi_proc_mem_info *info, int *proc_num);
int dcmi_get_device_sensor_info(int card_id, int device_id, enum dcmi_manager_sensor_id id, union dcmi_sensor_info *info);

/* Virtual devices, fault events */
int dcmi_get_device_info(int card_id, int device_id, int main_cmd, unsigned int sub_cmd, void *buf, unsigned int *size);
int dcmi_subscribe_fault_event(int card_id, int device_id, struct dcmi_event_filter filter, dcmi_fault_event_callback handler);

#endif
