import { describe, expect, it } from 'vitest';
import { type ProgressState, duration, progress, progressLine } from './progress.ts';

const state: ProgressState = {
  step: 1200,
  steps: 4687,
  epsilon: { spent: 1.517, planned: 3 },
  examplesPerSecond: 8120.4,
  secondsLeft: 161.2,
  loss: 0.43219,
};

describe('a progress line', () => {
  it('tells step, ε spent of the target, speed, time left, and marks the loss as not covered', () => {
    expect(progressLine(state)).toBe(
      'step 1200/4687 · ε 1.52 of 3.00 · 8120 examples/s · 2 min 41 s left · loss 0.432 (not covered by ε)',
    );
    expect(progressLine({ ...state, epsilon: null, loss: null })).toBe(
      'step 1200/4687 · no privacy · 8120 examples/s · 2 min 41 s left · loss – (not covered by ε)',
    );
  });

  it('tells times as people do', () => {
    expect([0, 59.4, 60, 161.2, 3599, 3600, 10920].map(duration)).toEqual([
      '0 s',
      '59 s',
      '1 min 0 s',
      '2 min 41 s',
      '59 min 59 s',
      '1 h 0 min',
      '3 h 2 min',
    ]);
  });
});

/** What a stream receives when a step takes `seconds`. */
function written(isTTY: boolean, steps: number, seconds: number, columns?: number): string[] {
  const texts: string[] = [];
  let time = 0;
  const shown = progress({ isTTY, columns, write: (text) => texts.push(text) }, { interval: 10, now: () => time });
  for (let step = 1; step <= steps; step++) {
    time += seconds;
    shown.update({ ...state, step, steps });
  }
  shown.done();
  return texts;
}

describe('progress', () => {
  it('is one line rewritten in place on a terminal, at most ten times a second, and ended', () => {
    const texts = written(true, 100, 0.02);
    expect(texts).toHaveLength(21);
    expect(texts.slice(0, -1).every((text) => text.startsWith('\r\x1b[2Kstep ') && !text.includes('\n'))).toBe(true);
    expect(texts.at(-2)).toContain('step 100/100');
    expect(texts.at(-1)).toBe('\n');
  });

  it('does not wrap on a narrow terminal', () => {
    expect(written(true, 10, 1, 40).every((text) => text.replace('\r\x1b[2K', '').length < 40)).toBe(true);
  });

  it('is a line every ten seconds elsewhere, and the last', () => {
    const texts = written(false, 105, 0.5);
    expect(texts.map((text) => /^step (\d+)\/105 .*\n$/.exec(text)?.[1])).toEqual([
      '20',
      '40',
      '60',
      '80',
      '100',
      '105',
    ]);
  });

  it('writes nothing when there was nothing to tell', () => {
    expect(written(true, 0, 1)).toEqual([]);
  });
});
