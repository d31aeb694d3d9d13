"""The tests of each family, by its `model_type`."""

from __future__ import annotations

from modeling.test_compound_attention import TestCompoundAttention
from modeling.test_embedding_decoder import TestEmbeddingDecoder
from modeling.test_gated_mean_max_aae import TestGatedMeanMaxAAE
from modeling.test_mean_max_aae import TestMeanMaxAAE
from modeling.test_rnn_cnn import TestRNNCNN
from modeling.test_structured_self_attention import TestStructuredSelfAttention

TESTS = {
    test.family.config_class.model_type: test
    for test in (
        TestMeanMaxAAE,
        TestGatedMeanMaxAAE,
        TestRNNCNN,
        TestCompoundAttention,
        TestStructuredSelfAttention,
        TestEmbeddingDecoder,
    )
}
