"""The architectures behind the samples, and how they are exported."""

from onnxperf.samples.zoo import language, vision
from onnxperf.samples.zoo.sample import Sample

#: By the name of their file, in the order of the table in README.md.
SAMPLES: dict[str, Sample] = {**vision.SAMPLES, **language.SAMPLES}
