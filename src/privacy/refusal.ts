import { GhostgradError } from '../errors.ts';
import { type PrivacyEvent, showEvent } from './events.ts';

/** What an accountant throws for an event that it does not understand. */
export const refusal = (accountant: string, event: PrivacyEvent, expected: string, fix?: string): GhostgradError =>
  new GhostgradError({
    what: `the ${accountant} accountant cannot account for this event`,
    found: showEvent(event),
    expected,
    fix,
  });

/**
 * Throws GhostgradError where `event` mixes Poisson samples, whose neighbours have one unit more or less, with samples
 * without replacement, whose neighbours have one replaced: no one statement covers both.
 */
export function refuseMixedNeighbors(accountant: string, event: PrivacyEvent): void {
  const kinds = samplesIn(event);
  if (kinds.has('poisson-sampled') && kinds.has('sampled-without-replacement')) {
    throw refusal(
      accountant, event,
      'samples of one kind: a Poisson sample is told for a unit added or removed, one without replacement for one replaced',
    );
  }
}

/** The kinds of sampling that leave something out. */
function samplesIn(event: PrivacyEvent): ReadonlySet<PrivacyEvent['kind']> {
  switch (event.kind) {
    case 'gaussian':
    case 'gaussian-with-counts':
    case 'laplace':
      return new Set();
    case 'poisson-sampled':
    case 'truncated-poisson-sampled':
      return event.rate === 1 ? samplesIn(event.event) : new Set(['poisson-sampled', ...samplesIn(event.event)]);
    case 'sampled-without-replacement':
      return event.sampleSize === event.datasetSize
        ? samplesIn(event.event)
        : new Set([event.kind, ...samplesIn(event.event)]);
    case 'composed':
      return new Set(event.events.flatMap((e) => [...samplesIn(e)]));
    case 'self-composed':
    case 'repeat-and-select':
      return samplesIn(event.event);
  }
}
