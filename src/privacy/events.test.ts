import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { composed, gaussian, parseEvent, poissonSampled, selfComposed, showEvent } from './events.ts';

describe('privacy events', () => {
  const event = composed([selfComposed(poissonSampled(0.01, gaussian(1.5)), 100), gaussian(3)]);

  it('survive JSON and are frozen', () => {
    expect(parseEvent(JSON.parse(JSON.stringify(event)))).toEqual(event);
    expect(Object.isFrozen(event)).toBe(true);
    expect(Object.isFrozen(parseEvent(JSON.parse(JSON.stringify(event))))).toBe(true);
  });

  it('read as text', () => {
    expect(showEvent(event)).toBe('composed(100 × poisson-sampled(0.01, gaussian(1.5)), gaussian(3))');
  });

  it('refuse numbers out of range', () => {
    for (const sigma of [0, -1, NaN, Infinity]) expect(() => gaussian(sigma)).toThrow(GhostgradError);
    for (const rate of [0, -0.1, 1.5, NaN]) expect(() => poissonSampled(rate, gaussian(1))).toThrow(GhostgradError);
    for (const count of [-1, 0.5, NaN, Infinity])
      expect(() => selfComposed(gaussian(1), count)).toThrow(GhostgradError);
  });

  it('refuse kinds and shapes they do not know, by name and place', () => {
    expect(() => parseEvent({ kind: 'lapalce' })).toThrow('kind "lapalce"');
    expect(() => parseEvent({ kind: 'composed', events: [event, { kind: 'poisson-sampled', rate: 0.1 }] })).toThrow(
      'event.events.1.event',
    );
    for (const bad of [
      null,
      undefined,
      3,
      'gaussian',
      [],
      { kind: 'gaussian' },
      { kind: 'gaussian', sigma: '1' },
      { kind: 'composed', events: 2 },
    ]) {
      expect(() => parseEvent(bad)).toThrow(GhostgradError);
    }
  });
});
