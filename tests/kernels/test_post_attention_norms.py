"""post_attention_norms against fp64 and against Hugging Face's modules."""

from eager_gemma4 import hf_norm
from exact_rows import exact
from row_op_tests import ManyWeightsTests

from gemma4_kernels.post_attention_norms.launch import post_attention_norms


class TestPostAttentionNorms(ManyWeightsTests):
    op = "post_attention_norms"
    rows = ("attention", "residual")
    weights = ("weight", "next_weight")

    def run(self, inputs, rounding, path, out=None):
        return tuple(post_attention_norms(**inputs, rounding=rounding, path=path, out=out))

    def exact(self, inputs):
        total = exact(inputs["attention"]).normed(inputs["weight"]).plus(exact(inputs["residual"]))
        return total, total.normed(inputs["next_weight"])

    def eager(self, inputs):
        total = inputs["residual"] + hf_norm(inputs["attention"], inputs["weight"])
        return total, hf_norm(total, inputs["next_weight"])
