"""Scores of a response: values by hand, padding, then the error."""

import pytest
import torch

from megatron_corew.algo.scores import response_means


def test_the_mean_runs_over_the_tokens_of_the_response_only():
    values_RT = torch.tensor([[1.0, 2.0, 6.0], [4.0, float("inf"), float("nan")]])
    mask_RT = torch.tensor([[True, True, True], [True, False, False]])
    assert response_means(values_RT, mask_RT).tolist() == [3.0, 4.0]


def test_a_response_without_a_token_scores_zero():
    means_R = response_means(torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool))
    assert means_R.tolist() == [0.0]


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        response_means(torch.ones(1, 2), torch.ones(2, dtype=torch.bool))
