import { GhostgradError } from '../errors.ts';
import { prepareAccountant } from '../privacy/accountant.ts';
import { type Certificate, type PrivacyEvent, deltaCurve, epsilonOf } from '../privacy/index.ts';
import type { CurvePoint } from './attacker.ts';

type Point = readonly [number, number];

/** Points of a plotted curve. */
const points = 40;

/** δ at ε from 0 to half as much again as was spent, by the tightest accountant that knows the event. */
export function privacyCurve({ event, accountant, epsilon }: Certificate): readonly CurvePoint[] {
  const most = Math.max(1.5 * epsilon, 0.5);
  const epsilons = Array.from({ length: points + 1 }, (_, i) => (i / points) * most);
  for (const name of new Set(['pld', accountant] as const)) {
    try {
      return deltaCurve(event, epsilons, name);
    } catch (error) {
      if (!(error instanceof GhostgradError)) throw error;
    }
  }
  return [];
}

/** ε after some of the releases, in the order in which they were made. */
export function epsilonOverReleases({ event, noise: { accountedDelta: delta }, accountant }: Certificate): readonly Point[] {
  const releases = inOrder(event);
  const [kind] = releases;
  if (kind === undefined) return [[0, 0]];
  const total = releases.reduce((sum, { count }) => sum + count, 0);
  const every = Math.max(1, Math.ceil(kind.count / points));
  const at = [...Array.from({ length: Math.floor((kind.count - 1) / every) }, (_, i) => (i + 1) * every), kind.count];
  try {
    const prepared = prepareAccountant(kind.event, accountant);
    // As finely as all of them ask for.
    prepared.epsilonBounded(kind.count, delta);
    return [
      [0, 0], ...at.map((count): Point => [count, prepared.epsilon(count, delta)]),
      ...(total > kind.count ? [[total, epsilonOf(event, delta, accountant).epsilon] as const] : []),
    ];
  } catch (error) {
    if (error instanceof GhostgradError) return [];
    throw error;
  }
}

interface Releases {
  readonly event: PrivacyEvent;
  readonly count: number;
}

/** Runs of equal releases. */
function inOrder(event: PrivacyEvent): readonly Releases[] {
  if (event.kind === 'composed') return event.events.flatMap(inOrder);
  if (event.kind !== 'self-composed') return [{ event, count: 1 }];
  return event.count === 0 ? [] : [{ event: event.event, count: event.count }];
}

/** At most `most` points: the means of as many neighbouring ones. */
export function thinned(series: readonly Point[], most = 200): readonly Point[] {
  const size = Math.ceil(series.length / most);
  if (size <= 1) return series;
  return Array.from({ length: Math.ceil(series.length / size) }, (_, i) => {
    const part = series.slice(i * size, (i + 1) * size);
    const mean = (at: 0 | 1): number => part.reduce((sum, point) => sum + point[at], 0) / part.length;
    return [mean(0), mean(1)];
  });
}

/** Means over the last `width` points each: noise that was added to each is averaged out. */
export function smoothed(series: readonly Point[], width: number): readonly Point[] {
  let sum = 0;
  return series.map(([x, y], i) => {
    sum += y - (i >= width ? series[i - width]![1] : 0);
    return [x, sum / Math.min(i + 1, width)];
  });
}
