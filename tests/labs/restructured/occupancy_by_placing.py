"""The lab 'occupancy', solved by placing blocks one by one, without a formula."""

from itertools import count


def fits(sm, kernel, blocks):
    warps = blocks * kernel.warps
    a_warp = next(size for size in count(0, 256) if size >= 32 * kernel.registers)
    in_a_partition = 0
    while (in_a_partition + 1) * a_warp <= sm.registers // sm.partitions:
        in_a_partition += 1
    return {
        "registers": warps <= in_a_partition * sm.partitions,
        "shared": blocks * (kernel.shared_bytes + 1024) <= sm.shared_bytes,
        "room": warps <= sm.warps and blocks <= sm.blocks,
    }


def most(sm, kernel, *limits):
    fitting = (n for n in count(1) if not all(fits(sm, kernel, n)[limit] for limit in limits))
    return next(fitting) - 1


def blocks_by_registers(sm, kernel):
    return most(sm, kernel, "registers")


def blocks_by_shared_memory(sm, kernel):
    return most(sm, kernel, "shared")


def blocks_per_sm(sm, kernel):
    return most(sm, kernel, "registers", "shared", "room")


def wave_share(sm, kernel, num_blocks):
    a_wave, waves = sm.count * blocks_per_sm(sm, kernel), 0
    while waves * a_wave < num_blocks:
        waves += 1
    return num_blocks / (waves * a_wave)
