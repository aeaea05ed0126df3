import { binomialMass, binomialTail, leastAbove } from './binomial.ts';

/** What an attacker said of canaries that each were in the data or not by a fair coin. */
export interface Guesses {
  /** m: canaries, guessed at or not. */
  readonly canaries: number;
  /** r: those that were guessed at; of the others the attacker abstained. How many was settled before the run. */
  readonly guesses: number;
  /** v: guesses that were right. */
  readonly right: number;
}

/**
 * How probable it is at most that an (ε, δ)-differentially private run lets so many guesses be right: Steinke, Nasr &
 * Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2 with the code of its appendix. However the
 * guesses depend on one another, their number of right ones is no larger than W ~ Binomial(r, e^ε/(1 + e^ε)) but for
 * 2mδ·α: P[right ≥ v] ≤ P[W ≥ v] + 2mδ·max_i P[v > W ≥ v − i]/i.
 */
export function probabilityOf({ canaries, guesses, right }: Guesses, epsilon: number, delta: number): number {
  const p = 1 / (1 + Math.exp(-epsilon));
  let alpha = 0;
  let below = 0;
  for (let i = 1; i <= right; i++) {
    const mass = binomialMass(guesses, right - i, p);
    below += mass;
    alpha = Math.max(alpha, below / i);
    // Past their largest the masses fall, and with them the mean.
    if (mass < alpha) break;
  }
  return Math.min(1, binomialTail(guesses, right, p) + 2 * canaries * delta * alpha);
}

/**
 * The largest ε that the guesses refute with `confidence`: were the run (ε, δ)-differentially private with a smaller one,
 * so many right guesses would come about with probability at most 1 − confidence. 0 where they refute none.
 */
export function oneRunBound(guesses: Guesses, delta: number, confidence: number): number {
  const { low } = leastAbove(0, 64, (epsilon) => probabilityOf(guesses, epsilon, delta) > 1 - confidence);
  return low;
}

/**
 * The best of {@link oneRunBound} over several numbers of guesses that were settled beforehand, each with its share of the
 * doubt. The canaries of the highest scores are guessed to be in the data, as many of the lowest to be out.
 *
 * @param scores larger for what is likelier to have been in the data
 * @param present whether each was
 */
export function oneRunBest(
  scores: Float64Array, present: Uint8Array,
  { numbers, delta, confidence }: { readonly numbers: readonly number[]; readonly delta: number; readonly confidence: number },
): Guesses & { readonly epsilon: number } {
  const order = Array.from(scores.keys()).sort((i, j) => scores[j]! - scores[i]!);
  const share = 1 - (1 - confidence) / numbers.length;
  const bounds = numbers.map((number) => {
    const half = Math.max(1, Math.min(Math.floor(number / 2), Math.floor(scores.length / 2)));
    const right = order.slice(0, half).filter((i) => present[i] === 1).length
      + order.slice(-half).filter((i) => present[i] === 0).length;
    const found: Guesses = { canaries: scores.length, guesses: 2 * half, right };
    return { ...found, epsilon: oneRunBound(found, delta, share) };
  });
  return bounds.reduce((best, bound) => (bound.epsilon > best.epsilon ? bound : best));
}
