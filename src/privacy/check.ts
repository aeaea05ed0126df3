import { GhostgradError } from '../errors.ts';

/** Throws GhostgradError unless ε is finite and above 0. */
export function checkEpsilon(epsilon: number, where = 'epsilon'): void {
  if (!(epsilon > 0 && Number.isFinite(epsilon)))
    throw outOfRange(where, epsilon, 'a finite number above 0', 'ε of 1 to 8 is common');
}

/** Throws GhostgradError unless 0 < δ < 1. */
export function checkDelta(delta: number, where = 'delta'): void {
  if (!(delta > 0 && delta < 1)) {
    throw outOfRange(
      where,
      delta,
      'more than 0 and less than 1',
      'choose δ well below 1 / (number of examples), e.g. 1e-5 for 50000 examples',
    );
  }
}

export function checkSteps(steps: number, where = 'steps'): void {
  if (!(Number.isSafeInteger(steps) && steps >= 1)) throw outOfRange(where, steps, 'a whole number of at least 1');
}

export function checkSampleRate(rate: number, where = 'sampleRate'): void {
  if (!(rate > 0 && rate <= 1))
    throw outOfRange(
      where,
      rate,
      'more than 0 and at most 1',
      'the sample rate is expected batch size / number of examples',
    );
}

export function checkNoiseMultiplier(sigma: number, where = 'noiseMultiplier'): void {
  if (!(sigma > 0 && Number.isFinite(sigma))) {
    throw outOfRange(
      where,
      sigma,
      'a finite number above 0',
      'to train without privacy, say so (privacy: none) instead of adding no noise',
    );
  }
}

export const outOfRange = (where: string, found: unknown, expected: string, fix?: string): GhostgradError =>
  new GhostgradError({ what: `${where} is out of range`, where, found: String(found), expected, fix });
