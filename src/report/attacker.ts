/** A point (ε, δ(ε)) of a privacy curve. */
export interface CurvePoint {
  readonly epsilon: number;
  readonly delta: number;
}

/**
 * The largest share of members that a test of membership can find while it is wrong for `falsePositives` of the others, when
 * the release is (ε, δ)-differentially private at each point of the curve: TPR ≤ e^ε·FPR + δ and
 * TPR ≤ 1 − e^{−ε}·(1 − δ − FPR) (Wasserman & Zhou 2010, Kairouz, Oh & Viswanath 2015).
 */
export const mostFound = (curve: readonly CurvePoint[], falsePositives: number): number =>
  Math.max(0, Math.min(1, ...curve.flatMap(({ epsilon, delta }) => [
    Math.exp(epsilon) * falsePositives + delta,
    1 - Math.exp(-epsilon) * (1 - delta - falsePositives),
  ])));

/**
 * How often a guess whether one record was in the data can be right at most, where both are equally likely: (1 + TPR − FPR)/2
 * is at most (e^ε + δ)/(e^ε + 1) at each point of the curve.
 */
export const mostRight = (curve: readonly CurvePoint[]): number =>
  Math.min(1, ...curve.map(({ epsilon, delta }) => 1 - (1 - delta) / (Math.exp(epsilon) + 1)));

/** How sure an attacker who was `prior` sure before can be after seeing the result, where odds grow by e^ε at most. */
export const posterior = (prior: number, epsilon: number): number => 1 / (1 + ((1 - prior) / prior) * Math.exp(-epsilon));
