"""Two device files that nobody ships: an L4 without TF32 and with half the host link, and a processor."""

CARD = """
name = "My Card"
architecture = "Ada"
capability = "8.9"
node_nm = 5
[processor]
sms = 58
lanes = 128
base_MHz = 795
boost_MHz = 2040
smem_KiB = 100
threads_per_sm = 1536
[memory]
memory_kind = "GDDR6"
bandwidth_GBps = 300
capacity_GiB = 24
l2_MiB = 48
[dense_TFLOPS]
fp32 = 30.3
tensor_fp16 = 121
[power_and_links]
tdp_W = 72
pcie = { gen = 4, lanes = 8 }
"""
PROCESSOR = """
name = "My processor"
kind = "cpu"
architecture = "x86-64 with AVX-512"
[processor]
cores = 1
lanes = 32
boost_MHz = 3500
[memory]
memory_kind = "DDR5"
bandwidth_GBps = 15
capacity_GiB = 16
l2_MiB = 2
l3_MiB = 24
[dense_TFLOPS]
fp32 = 0.224
"""
