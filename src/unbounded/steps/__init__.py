"""What happens in a step: batches, the objective and its gradient, optimisers, rules for λ."""
