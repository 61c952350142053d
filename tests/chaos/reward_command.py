"""The reward of reward.py as a command: started by the trainer, killed at any time."""

import json
import sys
import zlib

for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"], "reward": zlib.crc32(asked["response"].encode()) % 2}), flush=True)
