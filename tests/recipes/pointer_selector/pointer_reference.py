"""The same mathematics written for reading: one query, one candidate, one pick at a time, in plain Python."""

import math

import torch


def sequence_log_probs(policy, query, pool, size, pointer):
    """Log-probability of each pick of one sequence out of an unpadded pool."""
    encoded = policy.encode(query[None], pool[None, :size], torch.ones(1, size, dtype=torch.bool))
    state, taken, found = encoded.state[0], [], []
    for pick in pointer:
        norm = state / state.norm()
        left = [slot for slot in range(size) if slot not in taken]
        logits = {slot: (norm @ encoded.keys[0, slot]).item() / policy.config.temperature for slot in left}
        total = math.log(sum(math.exp(value) for value in logits.values()))
        found.append(logits[pick] - total)
        taken.append(pick)
        gate_in, proposal_in = (policy.gate_state(state) + encoded.values[0, pick]).chunk(2)
        gate = 1 / (1 + torch.exp(-gate_in))
        state = policy.state_norm((1 - gate) * state + gate * torch.tanh(proposal_in))
    return found


def rce(log_probs, rewards, tau):
    """Mean over groups; log_probs: groups of candidates of picks."""
    total = 0.0
    for group, group_rewards in zip(log_probs, rewards, strict=True):
        weights = [math.exp(reward / tau) for reward in group_rewards]
        for candidate, weight in zip(group, weights, strict=True):
            total -= weight / sum(weights) * sum(candidate) / len(candidate)
    return total / len(log_probs)


def advantages(rewards, kind, floor, clip):
    """Advantages of one group."""
    if max(rewards) - min(rewards) <= 1e-6:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    if kind == "rank":
        values = []
        for reward in rewards:
            below, same = sum(r < reward for r in rewards), sum(r == reward for r in rewards) - 1
            values.append(2 * (below + same / 2) / (len(rewards) - 1) - 1)
    else:
        values = [reward - mean for reward in rewards]
        deviation = math.sqrt(sum(value**2 for value in values) / len(values))
        values = [value / max(deviation, floor) for value in values]
    return [max(-clip, min(clip, value)) for value in values]


def grpo(log_probs, old, reference, advantage, clip, beta, level, kl_over="logged"):
    """(loss, policy part, KL part); nested lists of groups, candidates, picks."""
    policy_part, kl_part, count = 0.0, 0.0, sum(len(group) for group in log_probs)
    for g, group in enumerate(log_probs):
        likely = [math.exp(sum(candidate)) for candidate in group]
        for c, candidate in enumerate(group):
            share = 1 / count if kl_over == "logged" else likely[c] / sum(likely) / len(log_probs)
            triples = list(zip(candidate, old[g][c], reference[g][c], strict=True))
            if level == "sequence":
                triples = [tuple(sum(column) for column in zip(*triples, strict=True))]
            for new, before, anchor in triples:
                ratio = math.exp(new - before)
                clipped = max(1 - clip, min(1 + clip, ratio))
                policy_part -= min(ratio * advantage[g][c], clipped * advantage[g][c]) / len(triples) / count
                r = math.exp(anchor - new)
                kl_part += (r - 1 - math.log(r)) / len(triples) * share
    return policy_part + beta * kl_part, policy_part, kl_part
