/* SPDX-License-Identifier: Apache-2.0
 * The few offsets of channel/slot.h that the watcher, a C program, needs.
 * client/core/open_ivshmem.cc asserts that they are right. */
#pragma once
#define SLUICE_REGION_SLOT_BYTES 24
#define SLUICE_SLOT_STATE 128
#define SLUICE_SLOT_GENERATION 132
#define SLUICE_SLOT_HEARTBEAT 152
#define SLUICE_SLOT_SLEEPING 320
#define SLUICE_SLOT_DOORBELL 384
#define SLUICE_STATE_FREE 0
#define SLUICE_STATE_CLOSED 5
#define SLUICE_STATE_DEAD 6
