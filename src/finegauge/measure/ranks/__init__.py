"""A run on several processes of this machine: each a rank, divided by DDP, DeepSpeed or FSDP2."""
