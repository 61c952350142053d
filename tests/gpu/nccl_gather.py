"""What an all-gather of NCCL costs in a recorded graph, beside test_links' "rate of rows": one behind the other, 64 a graph.

    python3 tests/gpu/nccl_gather.py [RANKS]
"""

import os
import sys
import time

import torch
import torch.distributed as dist

EACH, REPLAYS = 64, 50
SIZES = [8 << 10, 10 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]


def rank_of(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29655", RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for size in SIZES:
        part = torch.zeros(size // world, dtype=torch.uint8, device="cuda")
        whole = torch.zeros(size, dtype=torch.uint8, device="cuda")
        for _ in range(3):
            dist.all_gather_into_tensor(whole, part)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(EACH):
                dist.all_gather_into_tensor(whole, part)
        graph.replay()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        us = (time.perf_counter() - start) / EACH / REPLAYS * 1e6
        if rank == 0:
            print(f"NCCL  {size:8} bytes of all ranks: {us:6.2f} us", flush=True)
        del graph
    dist.barrier()
    os._exit(0)  # leaving the group may wait for graphs that are gone


if __name__ == "__main__":
    world = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    torch.multiprocessing.spawn(rank_of, (world,), nprocs=world)
