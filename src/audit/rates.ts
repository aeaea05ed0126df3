import { clopperPearson } from './binomial.ts';
import { normalQuantile } from './quantile.ts';
import { type CurvePoint, type Rates, pointOfAccuracy, pointOfRates } from './trade-off.ts';

/** Scores of an attacker, larger for what is likelier to have been in the data, and whether it was, by fair coins. */
export interface Scored {
  readonly scores: Float64Array;
  readonly present: Uint8Array;
}

/**
 * The rates of the threshold at which `worth` is largest, each from its worse side, both right with `confidence` (Clopper &
 * Pearson 1934). The threshold is chosen on a part of the trials; rates are those of the others.
 */
export function bestRates(seen: Scored, confidence: number, worth: (rates: Rates) => number): Rates {
  return bestOf(seen, [(part, threshold) => {
    const rates = ratesAt(part, threshold, (1 - confidence) / 2);
    return { found: rates, worth: worth(rates) };
  }]);
}

/**
 * The point of the privacy curve that a threshold on the scores shows with `confidence`, by its two rates or by how often it
 * is right at all, whichever is as N(0, 1) against N(μ, 1) with the larger μ; threshold and way are chosen on a part of the
 * trials. Where the middle of the curve tells most, one number is known better than two.
 */
export function bestPoint(seen: Scored, confidence: number): CurvePoint {
  const miss = 1 - confidence;
  return bestOf(seen, [
    (part, threshold) => {
      const rates = ratesAt(part, threshold, miss / 2);
      return { found: pointOfRates(rates), worth: normalQuantile(rates.truePositive) - normalQuantile(rates.falsePositive) };
    },
    (part, threshold) => {
      const accuracy = accuracyAt(part, threshold, miss);
      return { found: pointOfAccuracy(accuracy), worth: 2 * normalQuantile(accuracy) };
    },
  ]);
}

type Look<T> = (part: Scored, threshold: number) => { readonly found: T; readonly worth: number };

/** The look and the threshold that are worth most on the first trials, on all others. */
function bestOf<T>({ scores, present }: Scored, looks: readonly Look<T>[]): T {
  const cut = Math.floor(scores.length / 5);
  const choosing: Scored = { scores: scores.subarray(0, cut), present: present.subarray(0, cut) };
  const judging: Scored = { scores: scores.subarray(cut), present: present.subarray(cut) };
  const sorted = choosing.scores.slice().sort();
  const candidates = looks.flatMap((look) => quantiles.map((p) => {
    const threshold = sorted[Math.floor(p * cut)] ?? 0;
    return { look, threshold, worth: look(choosing, threshold).worth };
  }));
  const { look, threshold } = candidates.reduce((best, candidate) => (candidate.worth > best.worth ? candidate : best));
  return look(judging, threshold).found;
}

const quantiles = [
  0.002, 0.005, 0.01, 0.02, 0.05, ...Array.from({ length: 17 }, (_, i) => 0.1 + 0.05 * i), 0.95, 0.98, 0.99, 0.995, 0.998,
];

function ratesAt({ scores, present }: Scored, threshold: number, miss: number): Rates {
  const [all, above] = [[0, 0], [0, 0]];
  scores.forEach((score, i) => {
    all[present[i]!]! += 1;
    if (score > threshold) above[present[i]!]! += 1;
  });
  const bounds = (world: 0 | 1) => (all[world] === 0 ? { low: 0, high: 1 } : clopperPearson(above[world]!, all[world]!, miss));
  return { truePositive: bounds(1).low, falsePositive: bounds(0).high };
}

/** Coins are fair and independent, so a right answer is one trial, whatever the coin showed. */
function accuracyAt({ scores, present }: Scored, threshold: number, miss: number): number {
  const right = scores.reduce((count, score, i) => count + ((score > threshold ? 1 : 0) === present[i] ? 1 : 0), 0);
  return clopperPearson(right, scores.length, miss).low;
}
